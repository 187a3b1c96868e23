"""Benchmarks: run by hand (`make bench`), never by tests."""
