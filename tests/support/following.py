"""Followers driven to chosen ends of a log, as a run drives them, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from reput.checkpoints.followers import FollowerState, read_follower_states
from reput.store.config import read_store_settings
from reput.store.follower import FollowerTarget
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers

IDENTITY = "0" * 32
"""The identity of the output."""


def follow(
    store: Path,
    output: Path,
    target: FollowerTarget,
    ends: Sequence[int],
    cut: int | None = None,
    *others: FollowerTarget,
) -> None:
    """One run, which goes on to each end of the log in turn; it finds the log cut at ``cut``."""
    (output / "reput").mkdir(parents=True, exist_ok=True)
    config = DispatcherConfig(store, output, followers=(target, *others))
    running = Followers(config, read_store_settings(store), IDENTITY)
    try:
        if cut is not None:
            running.truncate(cut)
        running.start(ends[0], ends[-1])
        for end in ends:
            running.advance(end)
            running.catch_up(threading.Event())
    finally:
        running.close()


def follower_state(output: Path) -> FollowerState:
    """The file of the one follower."""
    (state,) = read_follower_states(output / "reput")
    return state
