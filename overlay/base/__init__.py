"""A base at rest: its delayed messages, its open transactions, and its handover to its broker."""
