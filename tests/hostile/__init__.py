"""Bytes, names, files and positions from hostile hands: 26 cases, by number.

``test_case_NN_...`` is case NN of the threat model in docs/reliability.md. Each store is small and
dispatched without Spark; what must come of it is said by the plain models of
``tests.support.small_store``.
"""
