"""Spark's checkpoint directory read without Spark: the true position, or a refusal.

Directories are made by hand in the two text formats that Spark writes (``OffsetSeqLog``,
``CommitLog``); ``test_spark_versions`` reads Spark's own. Spark checks nothing in them, so every
file is cut, changed and removed here: what comes out may be damage, never a position that skips
data.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

from reput.checkpoints.spark_checkpoint import (
    DamagedCheckpointError,
    SparkPosition,
    move_aside,
    pin_start,
    read_position,
    read_positions,
    read_start,
    rewind,
)
from reput.store.files import SPARK_START_FILE
from reput.store.state.logoffset import offset_json

STORE = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32
BATCH_METADATA = {
    "batchWatermarkMs": 0,
    "conf": {"note": "v1"},
}


@dataclass(frozen=True)
class Case:
    """A directory and the position that it must give."""

    name: str
    start: int
    ends: tuple[int, ...]
    """End offset of each batch that is planned."""
    committed: int
    """How many batches are in the commits log."""
    expected: SparkPosition
    first_batch: int = 0
    source: str = ""
    """With a name of the source the format is v2."""

    def make(self, directory: Path) -> Path:
        for name in ("offsets", "commits", "sources"):
            (directory / name).mkdir(parents=True)
        (directory / "metadata").write_text('{"id":"7d0e6f44-2a4b-4f2f-8f8e-0d2f0b7a6a11"}')
        for index, end in enumerate(self.ends):
            version = "v2" if self.source else "v1"
            offset = self.source + json.dumps(offset_json(STORE, end))
            lines = (version, json.dumps(BATCH_METADATA), offset)
            batch = str(self.first_batch + index)
            (directory / "offsets" / batch).write_text("\n".join(lines))
            (directory / "offsets" / f".{batch}.crc").write_bytes(b"crc\0")
            if index < self.committed:
                (directory / "commits" / batch).write_text(
                    f'{version}\n{{"nextBatchWatermarkMs":0}}'
                )
                (directory / "commits" / f".{batch}.crc").write_bytes(b"crc\0")
        pin_start(directory, directory, STORE, self.start)
        return directory


CASES = (
    Case("first batch planned", 100, (900,), 0, SparkPosition(100, 0, False, 900)),
    Case("first batch done", 100, (900,), 1, SparkPosition(900, 0, True, 900)),
    Case("second planned", 100, (900, 1900), 1, SparkPosition(900, 1, False, 1900)),
    Case("third done", 100, (900, 1900, 2900), 3, SparkPosition(2900, 2, True, 2900)),
    Case("old ones purged", 0, (7000, 8000, 9000), 2, SparkPosition(8000, 42, False, 9000), 40),
    Case("named", 100, (900, 1900), 1, SparkPosition(900, 1, False, 1900), source="orders_1:"),
    Case("numbered", 100, (900,), 1, SparkPosition(900, 0, True, 900), source="0:"),
    Case("past ten", 0, tuple(range(100, 1300, 100)), 12, SparkPosition(1200, 11, True, 1200)),
)


@pytest.mark.parametrize("path", ["metadata", "commits/0"])
def test_a_checkpoint_without_batches_may_be_damaged(tmp_path: Path, path: str) -> None:
    """An empty one has no position; half a file of it, or a commit alone, is a loss."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    assert read_positions(tmp_path, STORE) == []
    (tmp_path / path).write_text("{")
    with pytest.raises(DamagedCheckpointError):
        read_positions(tmp_path, STORE)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def files_of(directory: Path) -> Iterator[Path]:
    """The files that are read; of many batches the last two."""
    batches = sorted(int(path.name) for path in (directory / "offsets").glob("[0-9]*"))
    for path in sorted(directory.rglob("*")):
        old = path.name.isdigit() and int(path.name) not in batches[-2:]
        if path.is_file() and not path.name.startswith(".") and not old:
            yield path


def position_or_damage(directory: Path) -> SparkPosition | None:
    """None for damage; a directory that is taken for an empty one fails the test."""
    try:
        found = read_position(directory, STORE)
    except DamagedCheckpointError:
        return None
    assert found is not None
    return found


def test_the_position_is_where_the_query_goes_on(case: Case, tmp_path: Path) -> None:
    """The end of the last committed batch; of an unfinished one its beginning."""
    assert read_position(case.make(tmp_path / "spark"), STORE) == case.expected


def test_a_rewound_directory_stands_where_it_was_brought_to(case: Case, tmp_path: Path) -> None:
    """Every position, newest first, and each step back at once; later batches are gone."""
    directory = case.make(tmp_path / "spark")
    steps = read_positions(directory, STORE)
    assert steps[0] == case.expected
    offsets = [position.offset for position in steps]
    assert offsets == sorted(offsets, reverse=True)
    for index, position in enumerate(steps):
        copy = shutil.copytree(directory, tmp_path / str(index))
        rewind(copy, position)
        assert read_positions(copy, STORE) == steps[index:]
    rewind(directory, steps[0])
    assert read_positions(directory, STORE) == steps


def test_a_rewind_that_stops_anywhere_stands_where_it_goes_on(tmp_path: Path) -> None:
    """After each removal the directory is one of the positions on the way."""
    case = Case("four", 100, (900, 1900, 2900, 3900), 3, SparkPosition(2900, 3, False, 3900))
    directory = case.make(tmp_path / "spark")
    steps = read_positions(directory, STORE)
    removed: list[SparkPosition | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "reput.checkpoints.spark_checkpoint.fsops.unlink",
            lambda path: (
                path.unlink(),
                removed.append(read_position(directory, STORE)),
            ),
        )
        rewind(directory, steps[-1])
    assert [position for position, _ in groupby(removed)] == steps[1:]


def test_no_checksum_is_left_without_its_file(tmp_path: Path) -> None:
    """Spark would stop at it: after a rewind, and where a commit was lost without its checksum."""
    case = Case("four", 100, (900, 1900, 2900, 3900), 4, SparkPosition(3900, 3, True, 3900))
    directory = case.make(tmp_path / "spark")
    (directory / "commits" / "3").unlink()
    position = read_position(directory, STORE)
    assert position == SparkPosition(2900, 3, False, 3900)
    rewind(directory, position)
    assert read_position(directory, STORE) == position
    assert set(checksums(directory)) == set(batches(directory))
    rewind(directory, SparkPosition(900, 0, True, 900))
    assert set(checksums(directory)) == set(batches(directory)) == {"offsets/0", "commits/0"}


def batches(directory: Path) -> list[str]:
    """The files of batches."""
    return [f"{path.parent.name}/{path.name}" for path in directory.glob("*/[0-9]*")]


def checksums(directory: Path) -> list[str]:
    """The files of batches that have a checksum."""
    return [f"{path.parent.name}/{path.name[1:-4]}" for path in directory.glob("*/.*.crc")]


def test_a_file_cut_anywhere_gives_the_position_or_damage(case: Case, tmp_path: Path) -> None:
    """Every truncation point of every file: Spark never syncs them, so a crash cuts them."""
    directory = case.make(tmp_path / "spark")
    damaged = 0
    for path in files_of(directory):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            found = position_or_damage(directory)
            assert found in (None, case.expected), (path.name, length)
            damaged += found is None
        path.write_bytes(whole)
    assert damaged > 100


@pytest.mark.parametrize("case", CASES[:-1], ids=lambda case: case.name)
def test_a_changed_byte_gives_the_position_or_damage(case: Case, tmp_path: Path) -> None:
    """Every byte of every file replaced by a digit and a line end."""
    directory = case.make(tmp_path / "spark")
    damaged = 0
    for path in files_of(directory):
        whole = path.read_bytes()
        for at in range(len(whole)):
            for other in (b"7", b"\n"):
                path.write_bytes(whole[:at] + other + whole[at + 1 :])
                found = position_or_damage(directory)
                assert found in (None, case.expected), (path.name, at, other)
                damaged += found is None
        path.write_bytes(whole)
    assert damaged > 100


def test_a_file_of_zeros_is_damage(case: Case, tmp_path: Path) -> None:
    """A power cut leaves this of a file whose data was never written."""
    directory = case.make(tmp_path / "spark")
    for path in files_of(directory):
        whole = path.read_bytes()
        path.write_bytes(bytes(len(whole)))
        if path.name != SPARK_START_FILE or not (case.expected.committed or case.expected.batch_id):
            assert position_or_damage(directory) is None, path
        else:
            assert position_or_damage(directory) in (None, case.expected)
        path.write_bytes(whole)


def test_a_missing_file_never_skips_data(case: Case, tmp_path: Path) -> None:
    """Each removed file gives damage, or a position that is not beyond the true one."""
    directory = case.make(tmp_path / "spark")
    for path in files_of(directory):
        whole = path.read_bytes()
        path.unlink()
        try:
            found = read_position(directory, STORE)
        except DamagedCheckpointError:
            found = None
        assert found is None or found.offset <= case.expected.offset, path
        path.write_bytes(whole)


def test_no_directory_and_an_empty_one_have_no_position(tmp_path: Path) -> None:
    """A new query begins there; so does one that wrote its id and no batch."""
    assert read_position(tmp_path / "nowhere", STORE) is None
    assert read_position(tmp_path, STORE) is None
    pin_start(tmp_path / "pinned", tmp_path, STORE, 77)
    assert read_position(tmp_path / "pinned", STORE) is None
    assert read_start(tmp_path / "pinned", STORE) == 77
    (tmp_path / "metadata").write_text('{"id":"7d0e6f44"}')
    (tmp_path / "offsets").mkdir()
    assert read_position(tmp_path, STORE) is None


def test_another_stores_checkpoint_is_refused(case: Case, tmp_path: Path) -> None:
    """Its offsets mean other bytes."""
    directory = case.make(tmp_path / "spark")
    with pytest.raises(DamagedCheckpointError, match="another store"):
        read_position(directory, OTHER)
    assert read_start(directory, OTHER) is None


@pytest.mark.parametrize("name", ["offsets/x", "offsets/0.tmp", "commits/-1", "offsets/٣"])
def test_what_spark_would_trip_over_is_refused(tmp_path: Path, name: str) -> None:
    """Names in the logs that are no batch; hidden files are Spark's own and are fine."""
    directory = CASES[2].make(tmp_path / "spark")
    (directory / "offsets" / ".1.crc").write_bytes(b"")
    (directory / "offsets" / ".1.0a1b.tmp").write_bytes(b"")
    assert read_position(directory, STORE) == CASES[2].expected
    (directory / name).write_text("v1\n{}")
    with pytest.raises(DamagedCheckpointError, match="is not a batch"):
        read_position(directory, STORE)


@pytest.mark.parametrize(
    ("ends", "committed", "removed"),
    [
        ((900, 1900), 0, ""),  # two planned, none committed
        ((900, 1900, 2900), 1, ""),
        ((900, 1900), 2, "offsets/1"),  # a commit without its offsets
        ((900, 1900, 2900), 2, "offsets/1"),  # where the last one begins
        ((900,), 1, "offsets/0"),
        ((1900, 900), 1, ""),  # the unfinished batch ends before it begins
        ((50,), 0, ""),  # before the pinned start
    ],
)
def test_logs_that_contradict_each_other_are_refused(
    tmp_path: Path, ends: tuple[int, ...], committed: int, removed: str
) -> None:
    """Spark would fail or skip; the watermark knows better."""
    odd = Case("odd", 100, ends, committed, SparkPosition(0, 0, False, 0))
    directory = odd.make(tmp_path / "spark")
    if removed:
        (directory / removed).unlink()
    with pytest.raises(DamagedCheckpointError):
        read_position(directory, STORE)


def test_no_position_lies_before_a_batch_without_a_commit(tmp_path: Path) -> None:
    """A batch whose commit is missing cannot be repeated from its start: it is unknown whether the
    one before it was done."""
    case = Case("", 100, (900, 1900, 2900, 3900), 4, SparkPosition(3900, 3, True, 3900))
    directory = case.make(tmp_path / "spark")
    (directory / "commits" / "1").unlink()
    assert read_positions(directory, STORE) == [
        SparkPosition(3900, 3, True, 3900),
        SparkPosition(2900, 3, False, 3900),
        SparkPosition(2900, 2, True, 2900),
    ]


@pytest.mark.parametrize("name", ["", "second:"])
def test_a_batch_of_two_sources_is_refused(tmp_path: Path, name: str) -> None:
    """Our query has one; another query's checkpoint is not ours to go on with."""
    directory = replace(CASES[1], source=name and "first:").make(tmp_path / "spark")
    path = directory / "offsets" / "0"
    path.write_text(f"{path.read_text()}\n{name}{json.dumps(offset_json(STORE, 900))}")
    with pytest.raises(DamagedCheckpointError):
        read_position(directory, STORE)


@pytest.mark.parametrize(
    "text", ["v1\n{}\nname:", "v2\n{}\n", "v2\n{}\n:", "v2\n{}\na b:", "v3\n{}\n"]
)
def test_a_source_is_named_in_the_newer_format_alone(tmp_path: Path, text: str) -> None:
    """Anything else is no file of Spark's."""
    directory = CASES[1].make(tmp_path / "spark")
    (directory / "offsets" / "0").write_text(text + json.dumps(offset_json(STORE, 900)))
    with pytest.raises(DamagedCheckpointError, match="offsets/0 is "):
        read_position(directory, STORE)


def test_a_directory_moved_aside_keeps_everything(tmp_path: Path) -> None:
    """Each time under a new name; the place is free afterwards."""
    kept = []
    for number in (1, 2, 3):
        directory = CASES[0].make(tmp_path / "spark")
        (directory / "mark").write_text(str(number))
        kept.append(move_aside(directory))
        assert not directory.exists()
    assert [path.name for path in kept] == [f"spark.replaced-{number}" for number in (1, 2, 3)]
    for number, path in enumerate(kept, 1):
        assert (path / "mark").read_text() == str(number)
        assert read_position(path, STORE) == CASES[0].expected
    shutil.rmtree(kept[0])
