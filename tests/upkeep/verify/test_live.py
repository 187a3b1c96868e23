"""A verification beside a dispatcher that goes on: what it writes meanwhile is no difference.

The log grows and is dispatched at chosen moments of the comparison, which was made for an earlier
watermark. Damage below that one is found all the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import reput.upkeep.verify.comparedindex
import reput.upkeep.verify.comparedqueue
import reput.upkeep.verify.index
import reput.upkeep.verify.logcomparison
from reput.upkeep.verify.difference import Difference
from tests.support.derived_output import DerivedOutput
from tests.support.grown_log import FILE_SIZE, SETTINGS, GrownLog
from tests.support.wire import file_name

MOMENTS = {
    "before the log is read": (reput.upkeep.verify.logcomparison.LogComparison, "_scan"),
    "before queues are finished": (reput.upkeep.verify.comparedqueue.ComparedQueue, "finish"),
    "before the index is finished": (reput.upkeep.verify.index.IndexVerifier, "finish"),
    "before one of its files": (reput.upkeep.verify.comparedindex.ComparedIndex, "_compare_file"),
    "before its slots": (reput.upkeep.verify.comparedindex.ComparedIndex, "_compare_records"),
    "before the checkpoint": (reput.upkeep.verify.logcomparison, "compare_store_checkpoint"),
}


def _dispatched(below: Path, seed: int, *, ext: bool) -> tuple[GrownLog, DerivedOutput]:
    """A log of 40 messages, and its output, which has them."""
    log = GrownLog(below / "store", random.Random(seed), ext=ext)
    log.grow(40)
    output = DerivedOutput(log.root, below / "output")
    output.start()
    return log, output


@pytest.mark.parametrize(
    ("messages", "is_damaged"), [(1, False), (3, False), (60, False), (60, True)]
)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("is_last", [False, True])
def test_what_is_dispatched_meanwhile_is_no_difference(
    ram_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    moment: str,
    messages: int,
    *,
    is_last: bool,
    is_damaged: bool,
) -> None:
    """One message, a few, or new files of every kind, when a moment comes for the first or for the
    last time; a queue was damaged before, or not."""
    log, output = _dispatched(ram_path, seed, ext=seed % 2 == 0)
    if is_damaged:
        # of one with several units: a start misses the only one
        paths = (output.root / "consumequeue" / "A").rglob("0*0")
        path = max(paths, key=lambda path: len(path.read_bytes().rstrip(b"\0")))
        path.write_bytes(b"damaged!" + path.read_bytes()[8:])
    owner, name = MOMENTS[moment]
    inner = getattr(owner, name)

    def verified(grown_at: int) -> tuple[Sequence[Difference], int]:
        """The differences, and how often the moment came; 0 is never."""
        calls = 0

        def go_on(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == grown_at:
                log.grow(messages)
                output.start()
            return inner(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, go_on)
            return output.verify().differences, calls

    found, calls = verified(verified(0)[1] if is_last else 1)
    assert calls
    wanted = [("consumequeue", "unit")] if is_damaged else []
    assert [(one.kind, one.damage.value) for one in found] == wanted
    assert is_damaged or output.verify().differences == ()


@pytest.mark.parametrize("messages", [0, 3])
def test_an_index_file_too_many_is_damage_if_no_dispatcher_can_have_made_it(
    ram_path: Path, seed: int, messages: int
) -> None:
    """With messages beyond the watermark it may be one that is filled just now, but only of the
    right size."""
    log, output = _dispatched(ram_path, seed, ext=False)
    log.grow(messages)
    path = output.root / "index" / "20991231235959999"
    path.write_bytes(bytes(output.layout.file_size))
    whole = [(one.path, one.damage.value) for one in output.verify().differences]
    assert whole == ([] if messages else [(f"index/{path.name}", "file")])
    path.write_bytes(bytes(10))
    (cut,) = output.verify().differences
    assert (cut.path, cut.found) == (f"index/{path.name}", (10,))


@pytest.mark.parametrize("messages", [0, 3])
def test_a_missing_index_file_is_damage_also_beside_a_dispatcher(
    ram_path: Path, seed: int, messages: int
) -> None:
    """Its entries are of messages below the watermark."""
    log, output = _dispatched(ram_path, seed, ext=False)
    log.grow(messages)
    max((output.root / "index").iterdir()).unlink()
    (one,) = output.verify().differences
    assert (one.kind, one.damage.value) == ("index", "missing")


@pytest.mark.parametrize("messages", [0, 3])
def test_an_ext_file_without_units_may_be_one_that_was_just_made(
    ram_path: Path, seed: int, messages: int
) -> None:
    """With messages beyond the watermark; otherwise no dispatcher made it."""
    log, output = _dispatched(ram_path, seed, ext=True)
    log.grow(messages)
    last = max(output.files()["consumequeue_ext"], key=lambda path: int(path.name))
    new = last.with_name(file_name(int(last.name) + SETTINGS["mappedFileSizeConsumeQueueExt"]))
    new.write_bytes(bytes(last.stat().st_size))
    found = [one.path for one in output.verify().differences]
    assert found == ([] if messages else [str(new.relative_to(output.root))])


@pytest.mark.parametrize("messages", [0, 3])
def test_a_queue_without_files_may_be_one_that_was_just_made(
    ram_path: Path, seed: int, messages: int
) -> None:
    """With messages beyond the watermark. Otherwise it is one that had files, of messages which the
    log has lost."""
    log = GrownLog(ram_path / "store", random.Random(seed), ext=False)
    log.grow(60)
    output = DerivedOutput(log.root, ram_path / "output")
    output.start()
    min((log.root / "commitlog").iterdir()).unlink()
    assert output.verify().differences == ()
    log.plain.cut(log.plain.end)
    (output.root / "consumequeue" / "New" / "0").mkdir(parents=True)
    for _ in range(messages):
        log.plain.append(topic=b"New", store_timestamp=1_700_000_100_000)
    last = max((log.root / "commitlog").iterdir())
    last.write_bytes(log.plain.image[int(last.name) : int(last.name) + FILE_SIZE])
    found = [(one.topic, one.damage.value) for one in output.verify().differences]
    assert found == ([] if messages else [("New", "missing")])
