"""Views of a run from outside: status, metrics, and its lag."""
