"""The way of an overlay's messages into a broker."""
