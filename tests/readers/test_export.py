"""Parquet files of a log's rows, against rows made one by one with the plain decoder."""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset
from pyspark.sql import SparkSession

from reput.readers import export as exporting
from reput.readers.export import Exported, RowSelection, export
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.errors import NoSpaceError, OwnershipError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.cli import REPUT, ROOT, Call, reput_json, reput_on_terminal
from tests.support.golden import ALL_GOLDEN_NAMES
from tests.support.plain_rows import as_table, inflated, is_internal, plain_rows
from tests.support.processes import open_files, open_paths
from tests.support.wire import PlainLog

PARTITIONS = dataset.partitioning(
    pa.schema([("topic", pa.string()), ("date", pa.date32())]), flavor="hive"
)
ODD_TOPICS = [
    "Orders", "Orders2", "orders", "订单", "%RETRY%g", "a.b", "a/b", "a\nb", "a\\b", "..", "[a]",
    "x=y", "null", "a*", "",
]  # fmt: skip


def expected_rows(store: Path) -> list[dict[str, Any]]:
    """The rows of the whole log."""
    log = CommitLog([store / "commitlog"])
    try:
        return list(plain_rows(log, log.min_offset, LogTail(log).settled(), inflated))
    finally:
        log.close()


def exported(
    store: Path,
    out: Path,
    selection: RowSelection | None = None,
    partition_by: tuple[str, ...] = (),
    columns: tuple[str, ...] = tuple(ROWS_SCHEMA.names),
    form: RowForm = DEFAULT_FORM,
) -> Exported:
    """One export, not stopped."""
    return export(
        read_store_settings(store), out, selection or RowSelection(), columns, partition_by,
        threading.Event(), lambda *_: None, form,
    )  # fmt: skip


def odd_store(root: Path) -> Path:
    """Messages of odd topics, two a day."""
    log = PlainLog(2048)
    for number in range(60):
        log.append(
            topic=ODD_TOPICS[number * 7 % len(ODD_TOPICS)].encode(),
            body=b"%d" % number * 10,
            store_timestamp=1_700_000_000_000 + number * 43_200_000,
        )
    log.write(root / "commitlog")
    return root


@pytest.mark.parametrize("name", ALL_GOLDEN_NAMES)
def test_files_hold_what_a_loop_over_records_finds(
    golden: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Every column of RocketMQ's stores, in the log's order; the counts are right."""
    store, out = golden(name), tmp_path / "made" / "out"
    summary = exported(store, out)
    rows = expected_rows(store)
    expected = as_table((row for row in rows if not is_internal(row)), ROWS_SCHEMA)
    assert pq.read_table(out).equals(expected)
    files = list(out.iterdir())
    assert [file.name for file in files] == ["part-0.parquet"]
    assert summary == Exported(
        expected.num_rows, 1, files[0].stat().st_size, len(rows) - expected.num_rows
    )
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_partitions_hold_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """They do so even if there are more of them than files may be open, and if files are closed
    early; an empty topic has no directory of its own."""
    monkeypatch.setattr(exporting, "MAX_OPEN_FILES", most)
    monkeypatch.setattr(exporting, "ROW_GROUPS_PER_FILE", most)
    monkeypatch.setattr(exporting, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("reput.store.rows.rows.ROWS_PER_BATCH", 8)
    store, out = odd_store(tmp_path / "store"), tmp_path / "out"
    summary = exported(store, out, partition_by=("topic", "date"))
    assert summary.files == len(list(out.rglob("*.parquet")))
    assert all("topic" not in pq.read_schema(file).names for file in out.rglob("*.parquet"))
    found = dataset.dataset(out, partitioning=PARTITIONS).to_table().sort_by("physicalOffset")
    rows = expected_rows(store)
    assert summary.rows == len(rows) == 60
    assert found.select([name for name in ROWS_SCHEMA.names if name != "topic"]).equals(
        as_table(rows, ROWS_SCHEMA).drop_columns(["topic"])
    )
    assert found.column("topic").to_pylist() == [row["topic"] or None for row in rows]
    assert found.column("date").to_pylist() == [row["storeTimestamp"].date() for row in rows]


def test_three_engines_read_the_same_topics_from_directory_names(
    tmp_path: Path, spark: SparkSession
) -> None:
    """pyarrow, DuckDB and Spark, each as it reads a directory by default: letters of several
    scripts, every ASCII character, what looks like an escape, and names that directories have."""
    topics = [
        "订单", "%RETRY%支付组", "%DLQ%g", "é", "e\u0301", "😀", "\u2028", "\x85", "%", "%%", "%2",
        "%20", "%E8%AE%A2", "a%20b=c", ".", "..", "_a", ".a", " a", "a ", "null", "~", "a\nb",
        "a//b", "Ä" * 60, *(f"x{chr(code)}y" for code in range(128)),
    ]  # fmt: skip
    log = PlainLog(1 << 16)
    for number, topic in enumerate(topics):
        log.append(topic=topic.encode(), queue_id=number)
    log.write(tmp_path / "store" / "commitlog")
    out = tmp_path / "out"
    assert exported(tmp_path / "store", out, partition_by=("topic",)).rows == len(topics)
    expected = dict(enumerate(topics))
    rows = dataset.dataset(out, partitioning="hive").to_table().to_pylist()
    assert {row["queueId"]: row["topic"] for row in rows} == expected
    query = f"select queueId, topic from read_parquet('{out}/**/*.parquet')"
    assert dict(duckdb.sql(query).fetchall()) == expected
    found = spark.read.parquet(str(out)).select("queueId", "topic").collect()
    assert {row.queueId: row.topic for row in found} == expected


def test_selections_are_those_of_a_loop(tmp_path: Path) -> None:
    """Topics by name and pattern, times and offsets with exclusive ends, some columns."""
    store = odd_store(tmp_path / "store")
    rows = expected_rows(store)
    middle, later = rows[20], rows[41]
    from_ms, to_ms = (
        (row["storeTimestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        for row in (middle, later)
    )
    start, end = middle["physicalOffset"], later["physicalOffset"]
    cases: list[tuple[RowSelection, Callable[[dict[str, Any]], bool]]] = [
        (
            RowSelection(from_ms=from_ms),
            lambda row: row["storeTimestamp"] >= middle["storeTimestamp"],
        ),
        (RowSelection(to_ms=to_ms), lambda row: row["storeTimestamp"] < later["storeTimestamp"]),
        (RowSelection(from_offset=start), lambda row: row["physicalOffset"] >= start),
        (RowSelection(from_offset=start + 1), lambda row: row["physicalOffset"] > start),
        (RowSelection(to_offset=end), lambda row: row["physicalOffset"] < end),
        (
            RowSelection(["Orders*", "?.b"], from_ms, to_ms, start + 1, end),
            lambda row: (
                start < row["physicalOffset"] < end
                and (row["topic"].startswith("Orders") or row["topic"] == "a.b")
            ),
        ),
        (RowSelection(to_offset=0), lambda _: False),
    ]
    for pattern in (*ODD_TOPICS, "*", "a?b", "*r*s*"):
        if not pattern.startswith("["):  # fnmatch knows sets of characters, too
            cases.append(
                (
                    RowSelection([pattern]),
                    lambda row, pattern=pattern: fnmatch.fnmatchcase(row["topic"], pattern),
                )
            )
    for number, (selection, rule) in enumerate(cases):
        out = tmp_path / str(number)
        summary = exported(store, out, selection, columns=("body", "queueId"))
        assert pq.read_schema(out / "part-0.parquet").names == ["body", "queueId"]
        bodies = [row["body"] for row in rows if rule(row)]
        assert pq.read_table(out).column("body").to_pylist() == bodies, selection
        assert summary.rows == len(bodies)


def test_a_system_topic_is_asked_for_by_its_name(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """A pattern leaves it out and counts it; the option takes all."""
    store = golden("mixed")
    known = expected_rows(store)
    scheduled = [row for row in known if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
    internal = sum(map(is_internal, known))
    assert 0 < len(scheduled) < internal

    def summary(*options: str) -> tuple[int, int]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        found = json.loads(call("export", store, out, "--json", *options).stdout)
        assert pq.read_table(out).num_rows == found["rows"]
        return found["rows"], found["internal_left_out"]

    assert summary() == (len(known) - internal, internal)
    assert summary("--topic", "*") == (len(known) - internal, internal)
    assert summary("--topic", "SCHEDULE*") == (0, len(scheduled))
    assert summary("--topic", "SCHEDULE_TOPIC_XXXX") == (len(scheduled), 0)
    assert summary("--topic", "SCHEDULE*", "--include-internal") == (len(scheduled), 0)
    assert summary("--include-internal") == (len(known), 0)
    done = call("export", store, tmp_path / "text")
    assert f"{internal} internal records left out; --include-internal" in done.stderr


def test_damaged_ranges_are_rows_without_topic_and_time(tmp_path: Path) -> None:
    """In a partition of their own; conditions on either leave them out."""
    log = PlainLog(1 << 20)
    offsets = [log.append(body=b"b" * 100) for _ in range(9)]
    log.put(offsets[4] + 4, b"\0\0\0\0")
    log.write(tmp_path / "store" / "commitlog")
    assert exported(tmp_path / "store", tmp_path / "all", partition_by=("topic",)).rows == 9
    odd = tmp_path / "all" / "topic=__HIVE_DEFAULT_PARTITION__" / "part-0.parquet"
    found = pq.ParquetFile(odd).read(["physicalOffset", "corruptReason"]).to_pylist()
    assert found == [{"physicalOffset": offsets[4], "corruptReason": "bad_magic"}]
    assert exported(tmp_path / "store", tmp_path / "some", RowSelection(["*"])).rows == 8


def test_files_that_no_condition_allows_are_not_read(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The display is given no more bytes to go through than those of the last file."""
    store = golden("plain")
    files = sorted((store / "commitlog").iterdir())
    size = files[0].stat().st_size
    seen: list[tuple[int, int, int]] = []
    summary = export(
        read_store_settings(store), tmp_path / "out", RowSelection(from_offset=int(files[-1].name)),
        ROWS_SCHEMA.names, (), threading.Event(), lambda *numbers: seen.append(numbers),
    )  # fmt: skip
    assert summary.rows > 0
    rows, done, total = seen[-1]
    assert rows == summary.rows
    assert 0 < done == total <= size


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets failpoints of this process."""
    yield lambda text: monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(text))


def test_export_that_fails_or_is_stopped_leaves_nothing(
    tmp_path: Path, points: Callable[[str], None]
) -> None:
    """A full disk, a failed sync, Ctrl-C."""
    store, out = odd_store(tmp_path / "store"), tmp_path / "out"
    for text, kind in (("pwrite:5=ENOSPC", NoSpaceError), ("sync:2=EIO", StoreError)):
        points(text)
        with pytest.raises(kind):
            exported(store, out, partition_by=("topic",))
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
    points("")
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreError, match="stopped"):
        export(
            read_store_settings(store), out, RowSelection(), ROWS_SCHEMA.names, (), stop,
            lambda *_: None,
        )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert [path for path in open_paths(tmp_path) if store not in path.parents] == []


@pytest.mark.extended
def test_killed_export_leaves_nothing_that_looks_finished(tmp_path: Path, seed: int) -> None:
    """SIGKILL before any of its writes: no OUT; the next export clears away and is whole."""
    store, out = odd_store(tmp_path / "store"), tmp_path / "out"
    rng = random.Random(seed)
    command = [*REPUT, "export", str(store), str(out), "--partition-by", "topic"]
    # the directory is there from the second on: its first sync is that of the files
    for operation in (f"pwrite:{rng.randrange(1, 300)}", "sync:1", "rename:1"):
        environment = {**os.environ, fsops.FAILPOINTS_VARIABLE: f"{operation}=kill"}
        done = subprocess.run(command, env=environment, check=False, cwd=ROOT, capture_output=True)
        assert done.returncode == -9, operation
        assert not out.exists()
        assert (tmp_path / "out.incomplete").is_dir()
    summary = reput_json(*command[len(REPUT) :])
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out"}
    files = list(out.rglob("*.parquet"))
    assert (summary["rows"], summary["files"]) == (60, len(files))
    assert summary["bytes"] == sum(file.stat().st_size for file in files)
    assert dataset.dataset(out, partitioning=PARTITIONS).count_rows() == 60


def test_two_exports_to_one_place(tmp_path: Path) -> None:
    """The second is refused while the first one writes, and clears away what it has left."""
    store = odd_store(tmp_path / "store")
    aside = tmp_path / "out.incomplete"
    aside.mkdir()
    (aside / "part-7.parquet").write_bytes(b"of the other one")
    fd = os.open(aside, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(OwnershipError, match="another export"):
        exported(store, tmp_path / "out")
    assert (aside / "part-7.parquet").read_bytes() == b"of the other one"
    os.close(fd)
    assert exported(store, tmp_path / "out").rows == 60
    assert not (tmp_path / "out" / "part-7.parquet").exists()
    assert open_files(tmp_path) == 0


def test_export_command(tmp_path: Path, call: Call) -> None:
    """It reports what it wrote, and each refusal is one line."""
    store, out = odd_store(tmp_path / "store"), tmp_path / "out"
    (tmp_path / "out").mkdir()
    shown = reput_on_terminal(
        "export", store, out, "--topic", "Orders", "--topic", "a?b", "--to-time", "2023-11-20",
        "--columns", "body,topic", "--partition-by", "date",
    )  # fmt: skip
    wanted = {"Orders", "a.b", "a/b", "a\nb", "a\\b"}
    limit = datetime(2023, 11, 20, tzinfo=UTC)
    rows = [row for row in expected_rows(store) if row["storeTimestamp"] < limit]
    bodies = [row["body"] for row in rows if row["topic"] in wanted]
    assert bodies
    assert f"{len(bodies)} rows in " in shown
    found = dataset.dataset(out, partitioning=PARTITIONS).to_table()
    assert sorted(found.column("body").to_pylist()) == sorted(bodies)
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_bytes(b"")
    for arguments, code, text in (
        ([out], 2, "is not empty"),
        ([file], 2, "file is not a directory"),
        ([new, "--columns", "body,bodies"], 2, "--columns names 'bodies'"),
        ([new, "--columns", "topic", "--partition-by", "topic"], 2, "no column is left"),
        ([new, "--partition-by", "queueId"], 2, "topic, date"),
        ([new, "--from-time", "noon"], 2, "--from-time is 'noon'"),
        ([file / "new"], 2, "file is not a directory"),
    ):
        done = call("export", store, *arguments)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith("reput: error: ")
        assert len(done.stderr.splitlines()) == 1
        assert text in done.stderr
        assert not new.exists()
    summary = json.loads(call("export", store, new, "--json").stdout)
    assert summary.keys() == {
        "rows", "files", "bytes", "internal_left_out", "lost_bytes", "damaged_bytes", "seconds"
    }  # fmt: skip


def test_the_beginning_of_a_topics_name_is_no_topic(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """The store has messages of the topic Orders; nothing is written for a slip of the hand."""
    done = call("export", golden("broker"), tmp_path / "new", "--topic", "Order")
    assert done.returncode == 2
    assert "no message of topic 'Order' in the chosen range of the log" in done.stderr
    assert not (tmp_path / "new").exists()
