"""Writers of what RocketMQ derives from its log, one file for each kind, behind one interface.

The interface is ``store.runs.dispatch.CommitLogDispatcher``; a new kind of index is a new file here
and an entry in ``streaming.dispatchers``. The driver calls them in turn for every batch.
"""
