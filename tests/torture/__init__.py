"""Faults by the thousand, each case a function of a seed and a number, so that any can be repeated.

``python -m tests.torture`` (``make torture``) runs the kinds at length and prints a table;
``test_torture`` runs a sample of each with every ``make test``.
"""
