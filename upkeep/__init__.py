"""Looking after an output: verify, compare, rebuild, expire, status, inspect, prepare."""
