"""A deterministic simulation of a server and its clients: one seed gives one history.

The real broker, its connections, offset writer and journals run in virtual time. Transports,
executors, power cuts and the queues of the store are simulated, and a checker follows the history
by rules of its own. Left out are what accepts connections, TLS, failing system calls, real readers
and overlays.
"""
