"""Upkeep of an output: verify, compare, rebuild, expire, status, inspect, prepare."""
