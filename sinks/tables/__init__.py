"""The common part of followers that fill tables: rows, columns of bodies, positions, counts."""
