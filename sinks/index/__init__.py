"""The writers of what RocketMQ derives: queues of both kinds, their ext, and index files."""
