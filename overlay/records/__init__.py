"""The records of an overlay, byte by byte as a broker of a release would write them."""
