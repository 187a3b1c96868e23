"""Message filters: tag expressions, SQL92 expressions and Bloom bit maps.

Sinks compute bit maps with this package, and readers evaluate filters. It is a leaf: it imports
only lark, mmh3 and the standard library. It takes properties as decoded strings; a caller with
bytes decodes them first with ``store.log.java.decode``.
"""
