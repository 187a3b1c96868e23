"""The wall clock jumps by years, back and forth: the dispatcher's, and the broker's, which the
messages' times show.

No position depends on time: the output is the one of a steady clock, message by message the same
bytes, and the names of index files, which are times, go on in the order of the log.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo

from reput.checkpoints import ownership
from reput.store.index import indexfile
from reput.streaming.config import DispatcherConfig
from tests.crash.work import SIZES
from tests.support.crash_images import outcome
from tests.support.derived_output import DerivedOutput
from tests.support.grown_log import GrownLog
from tests.support.sparkless import dispatch
from tests.torture.cases import Case, Kind

YEARS = 20
JUMPS = (0, 1, 60, 3_600, 86_400, YEARS * 366 * 86_400)
"""Seconds."""


class Jumping:
    """A wall clock; another time at each look, within some years of now."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time_ns() / 1e9 + self._rng.choice((-1, 1)) * self._rng.choice(JUMPS)

    def now(self, tz: tzinfo | None = None) -> datetime:
        """``datetime.now``."""
        return datetime.fromtimestamp(self.time(), tz) + timedelta(microseconds=1)


@contextmanager
def _jumping(clock: Jumping) -> Iterator[None]:
    before = indexfile.datetime, ownership.datetime, time.time
    indexfile.datetime = ownership.datetime = clock  # type: ignore[assignment]
    time.time = clock.time
    try:
        yield
    finally:
        indexfile.datetime, ownership.datetime, time.time = before


def _run(case: Case) -> str:
    """One log, dispatched in a few runs while the clock jumps; how many index files there were."""
    rng, directory = case.rng(), case.emptied()
    log = GrownLog(directory / "store", rng, ext=rng.random() < 0.5)
    jumping, steady = directory / "jumping", directory / "steady"
    runs = rng.randrange(1, 4)
    names: list[str] = []
    for _ in range(runs):
        for _ in range(rng.randrange(1, 5)):
            log.grow(rng.randrange(1, 12))
            log.back(rng.choice((-1, 1)) * rng.choice(JUMPS) if rng.random() < 0.5 else 0)
        cuts = rng.sample([end for _, end in log.plain.spans], min(3, len(log.plain.spans)))
        with _jumping(Jumping(rng)):
            dispatch(DispatcherConfig(log.root, jumping, once=True), cuts)
        now = sorted(path.name for path in (jumping / "index").iterdir())
        assert now[: len(names)] == names, "an index file was named as if it were older"
        names = now
    dispatch(DispatcherConfig(log.root, steady, once=True))
    found, wanted = (outcome(output, SIZES) for output in (jumping, steady))
    # the checkpoint's times may be those of any message: verify knows which
    wrong = [name for name in wanted if found[name] != wanted[name] and name != "checkpoint"]
    assert wrong == [], wrong
    assert DerivedOutput(log.root, jumping).verify().differences == ()
    return f"{min(len(names), 5)} index files or more"


KIND = Kind("clock", _run, 500, sample=10)
