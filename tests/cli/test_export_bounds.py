"""``export`` within the bounds that its options set, and what it says of a log with losses; and
options of ``rebuild`` that exclude each other."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call
from tests.support.golden import tree
from tests.support.wire import PlainLog

BEGAN, STEP_MS, COUNT = 1_700_000_000_000, 1000, 40
FILE_SIZE = 1024


@pytest.fixture
def log(tmp_path: Path) -> PlainLog:
    """A message a second, over several files."""
    log = PlainLog(FILE_SIZE)
    for number in range(COUNT):
        log.append(
            topic=b"AB"[number % 2 :][:1], body=b"%d" % number,
            store_timestamp=BEGAN + number * STEP_MS,
        )  # fmt: skip
    log.write(tmp_path / "store" / "commitlog")
    (tmp_path / "store" / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    return log


def exported(call: Call, root: Path, *words: object) -> list[int]:
    """The numbers of the messages in what an export writes."""
    out = root / f"out-{len(list(root.iterdir()))}"
    done = call("export", root / "store", out, *words)
    assert done.returncode == 0, done.stderr
    return [int(body) for body in pq.read_table(out).column("body").to_pylist()]


def test_an_export_has_what_lies_between_its_bounds(
    tmp_path: Path, log: PlainLog, call: Call
) -> None:
    """From the first bound on, and below the second one; of places as of times."""
    starts = [start for start, _ in log.spans]
    assert starts[-1] > 3 * FILE_SIZE
    every = [*range(COUNT)]
    assert exported(call, tmp_path) == every
    for low, high in ((7, 29), (0, 1), (12, 13), (39, 40)):
        places = ("--from-offset", starts[low], "--to-offset", [*starts, log.end][high])
        times = ("--from-time", BEGAN + low * STEP_MS, "--to-time", BEGAN + high * STEP_MS)
        assert exported(call, tmp_path, *places) == every[low:high]
        assert exported(call, tmp_path, *times) == every[low:high]
        assert exported(call, tmp_path, *places[:2]) == exported(call, tmp_path, *times[:2])
        assert exported(call, tmp_path, *places[2:]) == exported(call, tmp_path, *times[2:])
    both = ("--from-offset", starts[5], "--to-time", BEGAN + 9 * STEP_MS)
    assert exported(call, tmp_path, *both, "--topic", "A") == [6, 8]
    assert exported(call, tmp_path, *both, "--topic", "A", "--topic", "B") == [5, 6, 7, 8]


def test_what_is_lost_and_what_is_damaged_is_said_apart(
    tmp_path: Path, log: PlainLog, call: Call
) -> None:
    """Bytes of a file that is gone were not read; those of a bad record were."""
    done = call("export", tmp_path / "store", tmp_path / "sound")
    assert "of the log" not in done.stdout
    first, _ = log.spans[2]
    file = tmp_path / "store" / "commitlog" / f"{0:020d}"
    with file.open("r+b") as out:
        out.seek(first + 4)
        out.write(bytes(4))
    (tmp_path / "store" / "commitlog" / f"{2 * FILE_SIZE:020d}").unlink()
    done = call("export", tmp_path / "store", tmp_path / "out")
    _, _, words = done.stdout.rstrip().partition("; ")
    damaged = log.spans[2][1] - first
    assert words == f"1,024 bytes of the log lost; {damaged} bytes of the log damaged"


@pytest.mark.parametrize("extra", ["--dry-run", "--executors", "--sealed"])
def test_what_a_rebuild_has_kept_is_removed_by_a_call_for_that_alone(
    tmp_path: Path, log: PlainLog, call: Call, extra: str
) -> None:
    """Each other option asks for a build."""
    assert log.end > 0
    (tmp_path / "store" / "consumequeue.replaced-1").mkdir()
    before = tree(tmp_path)
    done = call("rebuild", tmp_path / "store", "--drop-old", extra)
    assert_one_line(done, 2, "--drop-old builds nothing, and excludes --dry-run, --executors")
    assert tree(tmp_path) == before


def test_a_place_from_which_topics_begin_is_for_one_store(
    tmp_path: Path, log: PlainLog, call: Call
) -> None:
    """Offsets of several logs have nothing in common."""
    assert log.end > 0
    several = ("--stores", tmp_path / "st*", "--outputs", tmp_path / "outputs")
    assert_one_line(call("rebuild", *several, "--from", 0), 2, "--from is for one store")
    assert not (tmp_path / "outputs").exists()
