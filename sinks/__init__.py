"""Dispatchers: each builds one thing that RocketMQ derives from its log, behind one interface.

The interface is ``store.dispatch.CommitLogDispatcher``; a new index is a new file here and one
line in ``streaming.dispatcher``. The driver calls them, one after the other, for every batch.
"""
