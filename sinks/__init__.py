"""Dispatchers that write RocketMQ's derived files, one module per kind, with one interface.

The interface is ``store.runs.dispatch.CommitLogDispatcher``. A new kind of index needs a new module
here and an entry in ``streaming.dispatchers``. The driver calls the dispatchers in turn for every
batch.
"""
