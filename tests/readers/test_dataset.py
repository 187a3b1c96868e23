"""The log as a dataset and under SQL, against the plain decoder's records counted in Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset

from reput.readers.dataset import MessageDataset
from reput.readers.sql import answer
from reput.store.config import read_store_settings
from reput.store.errors import NotReadyError, UsageError
from reput.store.log import java
from reput.store.log.record import Record
from reput.store.rows.rowform import AS_STORED, RowForm
from tests.support.cli import Call, reput
from tests.support.golden import ALL_GOLDEN_NAMES, log_records, tree
from tests.support.plain_rows import is_internal, plain_row
from tests.support.processes import bytes_read
from tests.support.wire import PlainLog

field = dataset.field


def property_of(record: Record, name: bytes) -> str | None:
    value = record.property_map.get(name)
    return None if value is None else java.decode(value)


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("name", ALL_GOLDEN_NAMES)
def test_filters_find_what_a_loop_over_records_finds(
    golden: Callable[[str], Path], name: str
) -> None:
    """On few columns and on many, on what prunes files and what does not."""
    store = golden(name)
    known = log_records(store)
    messages = MessageDataset(read_store_settings(store), AS_STORED)
    middle = known[len(known) // 2]
    time = at(middle.store_timestamp)
    topic = java.decode(middle.topic)
    tag = property_of(middle, b"TAGS")
    cases: list[tuple[dataset.Expression, Callable[[Record], bool]]] = [
        (field("topic") == topic, lambda one: one.topic == middle.topic),
        (
            field("physicalOffset") >= middle.physical_offset,
            lambda one: one.physical_offset >= middle.physical_offset,
        ),
        (field("storeTimestamp") < time, lambda one: one.store_timestamp < middle.store_timestamp),
        (
            (field("queueId") == middle.queue_id) & (field("storeTimestamp") >= time),
            lambda one: (
                one.queue_id == middle.queue_id and one.store_timestamp >= middle.store_timestamp
            ),
        ),
        (field("tags") == pa.scalar(tag, pa.string()), lambda one: (
            tag is not None and property_of(one, b"TAGS") == tag
        )),
        (field("physicalOffset") < 0, lambda _: False),
        (field("storeTimestamp").is_null(), lambda _: False),
    ]  # fmt: skip
    for wanted, rule in cases:
        expected = [one for one in known if rule(one)]
        found = messages.scanner(columns=["physicalOffset", "body"], filter=wanted).to_table()
        assert found.column("physicalOffset").to_pylist() == [
            one.physical_offset for one in expected
        ]
        alone = messages.scanner(columns=["queueOffset"], filter=wanted).to_table()
        assert alone.column("queueOffset").to_pylist() == [one.queue_offset for one in expected]
    assert messages.count_rows() == len(known)


def test_a_filter_opens_only_files_that_may_hold_rows(golden: Callable[[str], Path]) -> None:
    """By physical offset, and by time where it is further away than a clock may step."""
    store = golden("plain")
    messages = MessageDataset(read_store_settings(store))
    files = sorted((store / "commitlog").iterdir())
    assert len(files) > 4

    def cost(wanted: dataset.Expression | None) -> tuple[int, int]:
        before = bytes_read()
        rows = messages.scanner(columns=["topic"], filter=wanted).to_table().num_rows
        return rows, bytes_read() - before

    cost(None)  # whatever is loaded at the first use
    rows, whole = cost(None)
    some, little = cost(field("physicalOffset") >= int(files[-2].name))
    assert 0 < some < rows
    assert little < whole * 4 / len(files)
    none, nothing = cost(field("storeTimestamp") < at(1_000_000))
    assert none == 0
    assert nothing < whole / 10


def test_damaged_ranges_are_rows(golden: Callable[[str], Path]) -> None:
    """A filter for them finds them, although nothing is known of their time."""
    store = golden("plain")
    known = log_records(store)
    broken = known[len(known) // 2]
    file_size = (store / "commitlog" / "00000000000000000000").stat().st_size
    path = store / "commitlog" / f"{broken.physical_offset // file_size * file_size:020d}"
    with path.open("r+b") as file:
        file.seek(broken.physical_offset % file_size + 4)
        file.write(b"\0\0\0\0")
    messages = MessageDataset(read_store_settings(store))
    for wanted in (field("corruptReason").is_valid(), field("storeTimestamp").is_null()):
        found = messages.scanner(
            columns=["physicalOffset", "storeSize", "body"], filter=wanted
        ).to_table()
        assert found.to_pylist() == [
            {
                "physicalOffset": broken.physical_offset,
                "storeSize": broken.total_size,
                "body": None,
            }
        ]


@pytest.mark.parametrize("time", [1 << 62, -1 << 62, 253402300800000, 253402300799999])
def test_a_time_that_no_timestamp_can_hold_rules_nothing_out(tmp_path: Path, time: int) -> None:
    """Each file of the log begins with such a record, of five; the last of these times is the
    greatest that a timestamp can hold."""
    log = PlainLog(1024)
    while log.end < 4096:
        is_first = len(log.spans) % 5 == 0
        log.append(store_timestamp=time if is_first else 1_700_000_000_000, body=bytes(100))
    log.write(tmp_path / "commitlog")
    messages = MessageDataset(read_store_settings(tmp_path), AS_STORED)
    firsts = sum(start % 1024 == 0 for start, _ in log.spans)
    usual = field("storeTimestamp") == at(1_700_000_000_000)
    if time == 253402300799999:
        latest = field("storeTimestamp") >= at(time)
        assert messages.count_rows(filter=latest) == firsts
        return
    assert messages.count_rows(filter=usual) == len(log.spans) - firsts
    assert messages.count_rows(filter=field("storeTimestamp").is_null()) == firsts


def test_sql_counts_as_a_loop_does(golden: Callable[[str], Path]) -> None:
    """Groups, joins of the table with itself, and properties."""
    store = golden("mixed")
    known = log_records(store)
    messages = MessageDataset(read_store_settings(store), AS_STORED)
    query = "select topic, transactionType, count(*) as n from messages group by all"
    with answer(messages, query) as reader:
        found = {
            (row["topic"], row["transactionType"]): row["n"]
            for row in reader.read_all().to_pylist()
        }
    names = {0: "none", 4: "prepared", 8: "commit", 12: "rollback"}
    wanted = Counter((java.decode(one.topic), names[one.transaction_type]) for one in known)
    assert found == dict(wanted)
    query = (
        "select count(*) from messages a join messages b using (physicalOffset) "
        "where a.tags is not null and b.properties['UNIQ_KEY'] is not null"
    )
    both = [one for one in known if {b"TAGS", b"UNIQ_KEY"} <= one.property_map.keys()]
    with answer(messages, query) as reader:
        assert reader.read_all().to_pylist() == [{"count_star()": len(both)}]


def test_internal_records_are_left_out_and_counted(golden: Callable[[str], Path]) -> None:
    """A count has what a scan would give in addition if it were asked for, by its filter."""
    store = golden("mixed")
    settings = read_store_settings(store)
    known = [plain_row(one) for one in log_records(store)]
    middle = known[len(known) // 2]
    cases: list[tuple[dataset.Expression | None, Callable[[dict[str, Any]], bool]]] = [
        (None, lambda _: True),
        (
            field("topic") == "SCHEDULE_TOPIC_XXXX",
            lambda row: row["topic"] == "SCHEDULE_TOPIC_XXXX",
        ),
        (field("topic") == middle["topic"], lambda row: row["topic"] == middle["topic"]),
        (field("transactionType") == "commit", lambda row: row["transactionType"] == "commit"),
        (
            field("physicalOffset") < middle["physicalOffset"],
            lambda row: row["physicalOffset"] < middle["physicalOffset"],
        ),
    ]
    for wanted, rule in cases:
        met = [row for row in known if rule(row)]
        expected = [row["physicalOffset"] for row in met if not is_internal(row)]
        for columns in (["physicalOffset"], ["physicalOffset", "body"]):
            messages = MessageDataset(settings)
            found = messages.scanner(columns=columns, filter=wanted).to_table()
            assert found.column("physicalOffset").to_pylist() == expected
            assert messages.internal_left_out == len(met) - len(expected)
            again = MessageDataset(settings, RowForm(include_internal=True))
            assert again.scanner(columns=columns, filter=wanted).count_rows() == len(met)
            assert again.internal_left_out == 0


def test_sql_says_how_many_records_it_left_out(golden: Callable[[str], Path], call: Call) -> None:
    """Once, also for a table that is joined with itself; none where they are asked for."""
    store = golden("mixed")
    known = [plain_row(one) for one in log_records(store)]
    internal = sum(map(is_internal, known))
    query = "select count(*) n from messages a join messages b using (physicalOffset)"
    done = call("sql", store, query)
    assert json.loads(done.stdout) == {"n": len(known) - internal}
    assert f"{internal} internal records left out; --include-internal" in done.stderr
    done = call("sql", store, query, "--include-internal")
    assert (json.loads(done.stdout), done.stderr) == ({"n": len(known)}, "")
    compressed = "select count(*) n from messages where bodyCompression is not null"
    counts = [
        json.loads(call("sql", store, compressed, *options).stdout)["n"]
        for options in ((), ("--no-inflate-bodies",), ("--max-inflated-bytes", "1"))
    ]
    flagged = sum(row["sysFlag"] & 1 and not is_internal(row) for row in known)
    assert counts == [0, flagged, flagged]
    both = call("sql", store, query, "--no-inflate-bodies", "--max-inflated-bytes", "1m")
    assert both.returncode == 2
    assert "not both" in both.stderr


def test_every_value_of_an_answer_is_json(golden: Callable[[str], Path], call: Call) -> None:
    """Types that JSON lacks become text."""
    query = """select 'nan'::double as a, {'b': [1.5, '-inf'::double]} as b,
        interval '14 months 2 days 1.5 seconds' as c, sum(n::hugeint) as d, 1.1::decimal(5, 2) as e,
        null as f, true as g, timestamp '2026-01-02 03:04:05' as h, '\\xFF'::blob as i,
        1::decimal(5, 2) as j
        from (select unnest([1, 9007199254740993]) as n)"""
    done = call("sql", golden("plain"), query)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(done.stdout, parse_constant=refuse) == {
        "a": "NaN", "b": {"b": [1.5, "-Infinity"]}, "c": "P14M2DT1.5S", "d": 9007199254740994,
        "e": "1.10", "f": None, "g": True, "h": "2026-01-02T03:04:05", "i": {"base64": "/w=="},
        "j": "1.00",
    }  # fmt: skip


def test_sql_command(
    golden: Callable[[str], Path], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON lines, with times in UTC wherever it runs, and a line for a query that is none."""
    store = golden("plain")
    known = log_records(store)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    columns = "physicalOffset, storeTimestamp, storeTimestamp::varchar as text"
    done = reput("sql", store, f"select {columns} from messages order by 1")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["physicalOffset"] for row in rows] == [one.physical_offset for one in known]
    assert [datetime.fromisoformat(row["storeTimestamp"]) for row in rows] == [
        at(one.store_timestamp) for one in known
    ]
    assert {row["text"][-3:] for row in rows} == {"+00"}
    wrong = call("sql", store, "select nothing from nowhere")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("reput: error: the query cannot be run")
    assert len(wrong.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "query",
    [
        "copy (select topic from messages) to '{}'",
        "set enable_external_access = true; copy (select 1) to '{}'",
        "set allowed_directories = ['/']; copy (select 1) to '{}'",
        "attach '{}'",
        "export database '{}'",
        "from enable_logging(storage = 'file', storage_path = '{}')",
        "from enable_profiling(save_location = '{}')",
        "set profiling_output = '{}'",
        "set temp_directory = '{}'",
    ],
)
def test_a_query_writes_no_file(golden: Callable[[str], Path], tmp_path: Path, query: str) -> None:
    """Neither among the data of a store, by its name or through a link, nor elsewhere: a wrong call
    in one line."""
    store = golden("plain")
    (tmp_path / "link").symlink_to(store / "commitlog")
    before = tree(store)
    for place in (store / "commitlog", tmp_path / "link", tmp_path):
        with (
            pytest.raises(UsageError),
            answer(MessageDataset(read_store_settings(store)), query.format(place / "x")) as reader,
        ):
            reader.read_all()
        assert not (place / "x").exists()
    assert tree(store) == before


def test_what_does_not_fit_into_memory_is_put_elsewhere(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's own place for it is the working directory, which may be a store's."""
    monkeypatch.chdir(tmp_path)
    messages = MessageDataset(read_store_settings(golden("plain")))
    before = tree(tmp_path)
    query = "select current_setting('temp_directory') from messages limit 1"
    with answer(messages, query) as reader:
        place = Path(reader.read_all().column(0)[0].as_py())
        assert place.is_absolute()
        assert not place.is_relative_to(tmp_path)
    assert not place.exists()
    assert tree(tmp_path) == before


def test_a_store_without_a_log_is_refused(tmp_path: Path) -> None:
    """Before anything is asked."""
    with pytest.raises(NotReadyError, match="no commitlog"):
        MessageDataset(read_store_settings(tmp_path))
