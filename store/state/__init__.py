"""Positions and records of an output: watermark, ledger, settings, RocketMQ's state files."""
