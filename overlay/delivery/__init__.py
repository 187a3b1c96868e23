"""The records that wait in an overlay's log, and their delivery."""
