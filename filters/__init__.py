"""Which messages a consumer wants: tag expressions, SQL92 expressions, Bloom bit maps.

Sinks compute bit maps with it, readers evaluate filters. A leaf: it imports lark, mmh3 and the
standard library only, and takes properties as decoded strings; who has bytes decodes them with
``store.log.java.decode`` first.
"""
