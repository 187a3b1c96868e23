"""The writers of what RocketMQ derives: queues of both kinds, their ext, and index files.

Each finds out from its own files which entries it has, so that a batch may be written again.
"""
