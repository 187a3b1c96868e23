"""The soak's own parts: its appender, which dies well, and the models that its end is held against.

The soak itself is for ``make soak``; a short one is among the slow tests.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from reput.streaming.config import DispatcherConfig
from tests.soak import madelog
from tests.soak.appender import Appender
from tests.soak.ends import Expected, damaged_ranges, expected_of, ledger_of, unlike_models
from tests.soak.madelog import FILE_SIZE, MadeLog, write_settings
from tests.support.cli import ROOT
from tests.support.processes import module_command, wait_status_of
from tests.support.sparkless import dispatch

MESSAGES = 4_000
"""Three files of the log."""


def _append(store: Path, seed: int, messages: int, last_write: int = -1) -> None:
    """Append until the log has so many messages; killed before one of the writes."""
    write, count = os.pwrite, 0

    def pwrite(fd: int, data: bytes, at: int) -> int:
        nonlocal count
        count += 1
        if count == last_write:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(fd, data, at)

    os.pwrite = pwrite  # type: ignore[assignment]
    appender = Appender(store, seed)
    while appender.log.number < messages:
        appender.append()


def _log_of(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def test_a_killed_appender_goes_on_with_the_same_log(tmp_path: Path, seed: int) -> None:
    """kill -9 before any of its writes, also those that begin a file."""
    rng, store = random.Random(seed), tmp_path / "store"
    write_settings(store)
    kills = 0
    while wait_status_of(lambda: _append(store, seed, MESSAGES, rng.randrange(1, 2500))):
        kills += 1
    assert kills > 2
    log, image = MadeLog(seed), bytearray()
    for _ in range(MESSAGES):
        made = log.next()
        if made.blank:
            image[made.blank_at :] = made.blank.ljust(made.offset - made.blank_at, b"\0")
        image += made.data
    found = _log_of(store)
    assert len(found) % FILE_SIZE == 0
    assert found == image.ljust(len(found), b"\0")


@pytest.mark.parametrize("damaged_share", [madelog.DAMAGED_SHARE, 0.2])
def test_the_models_know_every_file_of_a_fault_free_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, damaged_share: float
) -> None:
    """In a few batches, without Spark, also where damaged records follow each other; one wrong byte
    of any kind is noticed."""
    monkeypatch.setattr(madelog, "DAMAGED_SHARE", damaged_share)
    store, output = tmp_path / "store", tmp_path / "output"
    write_settings(store)
    assert wait_status_of(lambda: _append(store, seed, MESSAGES)) == 0
    log = MadeLog(seed)
    made = [log.next() for _ in range(MESSAGES)]
    ends = [one.end for one in made]
    # a batch ends within no damage: nothing in the log says where one of two damaged records ends
    borders = [one.end for one in made if not one.is_damaged]
    dispatch(DispatcherConfig(store, output, once=True), random.Random(seed).sample(borders, 5))
    expected = Expected()
    for _, expected in expected_of(seed, ends[-1]):  # noqa: B007
        pass
    assert list(unlike_models(output, expected)) == []
    # a damaged last record may still be written: nothing says yet where it ends
    damaged = {(start, end) for start, end in expected.damaged if end != ends[-1]}
    assert damaged_ranges(ledger_of(output)) == damaged
    for kind in (*expected.trees(), "index"):
        path = next(path for path in sorted((output / kind).rglob("*")) if path.is_file())
        sound = path.read_bytes()
        path.write_bytes(sound[:50] + bytes([sound[50] ^ 1]) + sound[51:])
        assert len(list(unlike_models(output, expected))) == 1, kind
        path.write_bytes(sound)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("spark")
def test_a_short_soak_ends_as_a_fault_free_build(tmp_path: Path, seed: int) -> None:
    """Five minutes."""
    command = [*module_command("tests.soak"), "--seconds", "300", "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path / "soak")], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
