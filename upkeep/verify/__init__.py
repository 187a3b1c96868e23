"""Built files compared with what the log says, and cut where they are wrong; a module a kind.

The expected bytes come from the dispatchers themselves, so that their rules stand in one place:
queues are given files that compare what would be written with what they hold, the index is filled
in memory by its own kernel. Reads in bounded memory, a run of one scanned chunk at a time. What
lies before the log's first byte cannot be compared: there a unit must only be one. The interface is
``upkeep.verify.difference.Verifier``.
"""
