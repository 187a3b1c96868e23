"""Faults by the thousand, each case a function of a seed and a number, so that any can be repeated.

``python -m tests.torture`` (``make torture``) runs the kinds at length and prints a table;
``test_torture`` runs a sample of each with every ``make test``.
"""

from __future__ import annotations


class Several(str):
    """An outcome of a case with more faults than one; they are ``faults``."""

    faults: int

    def __new__(cls, outcome: str, faults: int) -> Several:
        """Make the outcome as it is shown."""
        found = super().__new__(cls, outcome)
        found.faults = faults
        return found
