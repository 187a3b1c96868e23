"""A deterministic simulation of a server and its clients."""
