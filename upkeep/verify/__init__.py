"""Compares built files with the log and cuts them where they are wrong; one module per kind.

The expected bytes come from the index writers themselves, so that their rules stand in one place:
queue writers get files that compare the bytes to be written with those they hold, and the index is
filled in memory by its own kernel. Verification runs in bounded memory, one run of a scanned chunk
at a time. Entries of messages before the log's first byte have nothing to be compared with, so that
they only have to be well formed. The interface is ``upkeep.verify.difference.Verifier``.
"""
