"""One byte among ten million entries: wherever it is, the comparison finds it, and no other."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.queue.consumequeue import UNIT_DTYPE
from reput.upkeep.shadow import EntryDifference, Shadow
from tests.support.cli import reput, reput_json

MESSAGES = 10_000_000
QUEUES = (8, 8)
"""Topics, and queues of each."""
ROUNDS = 200
UNIT = UNIT_DTYPE.itemsize

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


class Planted:
    """A byte of an entry, which is changed in a ``with`` block; every one is as likely."""

    def __init__(self, queues: Path, rng: random.Random) -> None:
        self._rng = rng
        self.entry = rng.randrange(MESSAGES)
        length = MESSAGES // (QUEUES[0] * QUEUES[1])
        queue, self.unit = divmod(self.entry, length)
        directory = queues / f"Topic_{queue // QUEUES[1]:03d}" / str(queue % QUEUES[1])
        position = self.unit * UNIT + rng.randrange(UNIT)
        files = sorted(directory.iterdir())
        self.path = next(one for one in reversed(files) if int(one.name) <= position)
        self.at = position - int(self.path.name)

    def __enter__(self) -> Planted:
        self._flip(self._rng.randrange(1, 256))
        return self

    def __exit__(self, *_: object) -> None:
        self._flip(self._by)

    def _flip(self, by: int) -> None:
        self._by = by
        with self.path.open("r+b") as file:
            file.seek(self.at)
            byte = file.read(1)[0]
            file.seek(self.at)
            file.write(bytes([byte ^ by]))

    def is_that(self, found: EntryDifference) -> bool:
        """Whether a difference is at this byte, and names the entry."""
        place = (found.topic, str(found.queue_id), found.file, found.position, found.unit)
        return place == (*self.path.parts[-3:], self.at, self.unit)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of ten million messages, and queues of them in the broker's place."""
    made = tmp_path_factory.mktemp("millions") / "store"
    shape = ("--topics", QUEUES[0], "--queues", QUEUES[1], "--size", 12)
    reput_json("produce", made, "--count", MESSAGES, *shape)
    done = reput_json("run", made, "--output", made.parent / "output", "--once")
    assert done["messages"] == MESSAGES
    shutil.copytree(made.parent / "output" / "consumequeue", made / "consumequeue")
    return made


def test_the_command_finds_it(store: Path, tmp_path: Path, seed: int) -> None:
    """While it dispatches the whole log into an output of its own."""
    with Planted(store / "consumequeue", random.Random(seed)) as planted:
        done = reput("shadow", store, "--output", tmp_path / "output", "--once", "--json")
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    (found,) = said["differences"]
    assert planted.is_that(EntryDifference(**found))
    # that queue is compared no further, and the others are to their ends
    queue = MESSAGES // (QUEUES[0] * QUEUES[1])
    assert said["compared"]["consumequeue"]["entries"] == MESSAGES - queue + planted.unit
    print(f"dispatched and compared in {said['seconds']} s")


def test_wherever_it_is(store: Path, seed: int) -> None:
    """With an output that is built already, so that a round costs the comparison alone."""
    rng, output = random.Random(seed), store.parent / "output"
    settings, began = read_store_settings(store), time.monotonic()
    for number in range(ROUNDS):
        with Planted(store / "consumequeue", rng) as planted:
            shadow = Shadow(settings, output)
            with shadow:
                shadow.end_moved(settings, None)
        assert [planted.is_that(one) for one in shadow.result.differences] == [True], number
    print(f"{ROUNDS} rounds, {(time.monotonic() - began) / ROUNDS:.2f} s each")
    with (shadow := Shadow(settings, output)):
        shadow.end_moved(settings, None)
    assert shadow.result.is_equal
    assert asdict(shadow.result)["compared"]["consumequeue"]["entries"] == MESSAGES
