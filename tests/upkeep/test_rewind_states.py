"""Rewinds, checks and lists of positions in rare states: what was killed or damaged before, a log
that lost its front, queues that begin with blanks."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from reput.checkpoints.history import read_history
from reput.checkpoints.keptstate import list_kept
from reput.checkpoints.rewind import Target
from reput.store.errors import UsageError
from reput.store.log.logtail import LogTail
from reput.upkeep.checkpoints import check, read_positions, rewind
from tests.streaming.test_begin_again import Site
from tests.support.golden import tree
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.upkeep.test_checkpoints import MESSAGES, Place


@pytest.fixture
def place(ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An output of three batches."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    return Place(ram_path, random.Random(seed))


def test_a_start_that_is_refused_is_said_by_a_check(place: Place, seed: int) -> None:
    """It is no error of the check: the log is another one."""
    other = GrownLog(place.log.root.with_name("other"), random.Random(seed + 1), ext=True)
    other.grow(2 * MESSAGES)
    shutil.rmtree(place.log.root / "commitlog")
    shutil.copytree(other.root / "commitlog", place.log.root / "commitlog")
    found = check(place.output.settings(), place.root, None)
    assert any("is not the one that was dispatched" in line for line in found.problems)
    (line,) = found.next_start
    assert line.startswith("is refused: ")
    assert "this is another log" in line or "too few" in line


def test_a_rewind_moves_a_checkpoint_aside_that_spark_cannot_go_on_with(place: Place) -> None:
    """Nothing of it is lost; the other positions are in the rewind's own copy."""
    spark = place.output.state / "spark"
    (spark / "offsets" / "x").write_text("no batch")
    before = tree(spark)
    place.rewind(place.spans[30][0])
    assert not spark.exists()
    assert tree(place.output.state / "spark.replaced-1") == before
    names = [kept.path.name for kept in list_kept(place.root, spark)]
    assert names == ["rewound-1", "spark.replaced-1"]


def test_what_is_kept_is_listed_with_all_its_bytes(place: Place) -> None:
    """Files below its directories count too."""
    place.rewind(place.spans[30][0])
    (kept,) = list_kept(place.root, place.output.state / "spark")
    files = tree(kept.path)
    assert any("/" in name for name in files)
    assert kept.bytes == sum(map(len, files.values()))


def test_a_checkpoint_that_is_not_there_is_no_empty_one(place: Place) -> None:
    """One that was given, and the output's own before the first batch, which is."""
    settings, nowhere = place.output.settings(), place.root / "nowhere"
    with pytest.raises(UsageError, match=f"there is no directory {nowhere}"):
        read_positions(settings, place.root, nowhere)
    shutil.rmtree(place.output.state / "spark")
    assert read_positions(settings, place.root, None).history.batches == ()


def test_nothing_is_made_in_a_brokers_own_store(place: Place) -> None:
    """It has no positions that could be rewound."""
    store = place.log.root
    shutil.copytree(place.root / "consumequeue", store / "consumequeue")
    before = tree(store)
    for apply in (False, True):
        with pytest.raises(UsageError, match="has no watermark"):
            rewind(place.output.settings(), store, None, Target(offset=0), apply=apply)
    assert tree(store) == before


def test_a_rewind_removes_what_a_killed_rebuild_has_built(place: Place) -> None:
    """As each owner of the output does; a dry run leaves it."""
    aside = place.root / ".reput-rebuild"
    (aside / "new" / "consumequeue").mkdir(parents=True)
    place.rewind(place.spans[30][0], apply=False)
    assert aside.exists()
    place.rewind(place.spans[30][0])
    assert not aside.exists()


def test_a_lost_range_that_begins_before_the_log_is_no_place(place: Place) -> None:
    """A part of it is in the log that is left; what a start would list anew is not."""
    commitlog = place.log.root / "commitlog"
    at = next(number for number, (start, _) in enumerate(place.spans) if start >= FILE_SIZE)
    lost = (place.spans[at - 1][0], place.spans[at + 2][1])
    line = json.dumps({
        "physical_offset": lost[0], "end_physical_offset": lost[1], "reason": "segment_deleted",
        "topic": None, "queue_id": None, "queue_offset": None, "detail": None,
    })  # fmt: skip
    with (place.output.state / "quarantine.jsonl").open("a") as ledger:
        ledger.write(line + "\n")
    min(commitlog.iterdir()).unlink()
    asked = place.spans[at + 1][0]
    with pytest.raises(UsageError, match=f"begins at {lost[0]}, before the log's beginning"):
        place.rewind(asked, apply=False)
    assert place.rewind(lost[1], apply=False).rewind.offset == lost[1]


def test_blanks_before_a_queues_first_message_are_no_units(tmp_path: Path) -> None:
    """Five messages from offset 3 on have five units; the blanks go with them."""
    site = Site(tmp_path)
    site.put("Other", range(2))
    site.put("Orders", range(3, 8))
    site.write()
    site.output.start()
    first = Target(offset=site.offsets[0][1])
    found = rewind(site.output.settings(), site.output.root, None, first, apply=False).rewind
    assert (found.messages, found.units, found.queues) == (5, 5, 1)


def test_a_batch_whose_start_is_not_known_is_no_target(place: Place) -> None:
    """The batch before it is gone: the refusal names those that can be rewound to."""
    for name in ("offsets", "commits"):
        (place.output.state / "spark" / name / "0").unlink()
    with pytest.raises(UsageError, match=r"start of batch 1 is not known.* has batches 2 to 2;"):
        rewind(place.output.settings(), place.root, None, Target(batch=1), apply=False)


def test_each_finding_in_a_checkpoint_is_said_once(place: Place) -> None:
    """A file that is cut, and a batch that ends before it begins, whose start is then unknown."""
    spark = place.output.state / "spark"
    path = spark / "offsets" / "1"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    found = read_history(spark, _store_id(spark))
    assert len(found.damage) == 1 and "offsets/1" in found.damage[0]
    shutil.copy(spark / "offsets" / "2", path)
    (spark / "offsets" / "2").write_bytes(whole)
    found = read_history(spark, _store_id(spark))
    first, second = place.cuts
    end = place.spans[-1][1]
    assert found.damage[0] == f"offsets/2 ends at {second}, before its start {end}"
    assert [(one.start, one.end) for one in found.batches] == [
        (0, first), (first, end), (None, second)
    ]  # fmt: skip


def _store_id(spark: Path) -> str:
    """The store's identity, as the pinned start tells it."""
    found = json.loads((spark / "reput-start").read_text())
    return str(next(value for value in found.values() if isinstance(value, str)))
