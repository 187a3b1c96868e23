"""Benchmarks against RocketMQ and against the hardware: ``python -m bench``, never run by tests.

They time the product as it ships: nothing here switches off a sync or a check.
"""
