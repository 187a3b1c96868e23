"""Writers of RocketMQ's derived files, one module per kind of index, with one interface.

The interface is ``store.runs.dispatch.IndexWriter``. A new kind of index needs a new module here
and an entry in ``streaming.indexes``. The driver calls the writers in turn for every batch.
"""
