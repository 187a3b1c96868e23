"""The follower that keeps a Delta table."""
