"""Each command prints and does what its help says, on real stores."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record, encode
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.readers.stores import QUEUE_FILE_SIZE, SmallStore
from tests.streaming.test_golden import dispatch
from tests.support.cli import Call, json_lines, json_object, reput, reput_json, without_java
from tests.support.golden import difference, log_records, tree
from tests.support.plain_queues import plain_units, queue_directories
from tests.support.wire import UNIT, file_name

UNITS_PER_FILE = QUEUE_FILE_SIZE // UNIT.size


def test_run_once_json_ends_with_the_promised_line(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Exactly the promised fields, and the queues are RocketMQ's. JAVA_HOME is enough. Packages of
    the working directory do no harm: one that is named as one of ours is a usual thing where stores
    are kept. No process imports pandas, as pyspark and Arrow would, for half a second of CPU."""
    store, output = golden("broker"), tmp_path / "output"
    for name in ("store", "sources", "streaming"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not ours')\n")
    java = shutil.which("java")
    assert java is not None
    home = str(Path(java).resolve().parent.parent)
    command = [Path(sys.executable).with_name("reput"), "run", store, "--once", "--json"]
    done = subprocess.run(
        [*command, "--output", output],
        capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path,
        env=without_java(tmp_path / "programs")
        | {"JAVA_HOME": home, "PYTHONPROFILEIMPORTTIME": "1"},
    )  # fmt: skip
    found = json_object(done)
    assert list(found) == [
        "messages", "end_offset", "duplicates", "quarantined_bytes", "gaps", "seconds",
    ]  # fmt: skip
    assert (found["messages"], found["duplicates"], found["gaps"]) == (6120, 0, 0)
    assert difference(output / "consumequeue", store / "consumequeue") == []
    imported = set(re.findall(r"^import time: .* (\w+)\.\w+$", done.stderr, re.M))
    assert imported >= {"numba", "pyarrow", "pyspark"}
    assert "pandas" not in imported, "one that fails is seen, without its parts"


@pytest.mark.usefixtures("spark")
def test_status_before_and_after(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """Unknown figures are null, never 0; afterwards every queue's offsets are RocketMQ's."""
    store, output = golden("broker"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)  # what a dispatcher makes first
    before = json_object(call("status", store, "--output", output, "--json"))
    assert before["watermark"] is before["lag_bytes"] is before["lag_messages"] is None
    assert before["log_end"] == 1660624
    assert "unknown" in call("status", store, "--output", output).stdout
    dispatch(store, output)
    after = json_object(call("status", store, "--output", output, "--json"))
    assert (after["watermark"], after["lag_bytes"], after["lag_messages"]) == (1660624, 0, 0)
    orders = [queue for queue in after["queues"] if queue["topic"] == "Orders"]
    assert sum(queue["max_offset"] for queue in orders) == 6000
    assert {queue["min_offset"] for queue in orders} == {0}
    assert len(orders) == 4


def test_status_of_rocketmqs_own_queues(golden: Callable[[str], Path], call: Call) -> None:
    """A store that reput never touched can be looked at as well."""
    found = json_object(call("status", golden("broker"), "--json"))
    orders = [queue for queue in found["queues"] if queue["topic"] == "Orders"]
    assert sum(queue["max_offset"] for queue in orders) == 6000
    assert found["watermark"] is None


@pytest.mark.parametrize(("name", "prefix"), [("batch", "BatchTopic"), ("lmq", "%LMQ%")])
def test_status_and_inspect_show_queues_of_every_kind(
    golden: Callable[[str], Path], name: str, prefix: str, call: Call
) -> None:
    """Batch queues and light queues, as RocketMQ's files have them."""
    store = golden(name)
    expected = {
        (directory.parent.name, int(directory.name)): plain_units(directory)
        for directory in queue_directories(store)
    }
    found = json_object(call("status", store, "--json"))["queues"]
    shown = {(one["topic"], one["queue_id"]): one for one in found}
    assert list(shown) == sorted(shown)
    assert shown.keys() >= expected.keys()
    for key, units in expected.items():
        assert shown[key]["min_offset"] == units[0][0]
        assert shown[key]["max_offset"] > units[-1][0]
    topic, queue_id = next(key for key in expected if key[0].startswith(prefix))
    units = expected[topic, queue_id]
    start = len(units) // 2
    done = call("inspect", "queue", store, topic, queue_id, "--from", units[start][0], "--json")
    rows = json.loads(done.stdout)
    fields = ("queue_offset", "physical_offset", "size", "tags_code")
    assert [tuple(row[field] for field in fields) for row in rows] == units[start : start + 20]
    assert {row["record"] for row in rows} == {"sound"}


def test_inspect_changes_no_byte(golden: Callable[[str], Path], call: Call) -> None:
    """All three, on a store with everything in it, and on a damaged record."""
    store = golden("mixed")
    before = tree(store)
    for arguments in (
        ("record", store, 0),
        ("record", store, 17),
        ("queue", store, "订单-主题", 0),
        ("checkpoint", store),
    ):
        done = call("inspect", *arguments)
        assert done.returncode == 0, done.stderr
    assert tree(store) == before


def test_inspect_record_tells_what_stands_there(golden: Callable[[str], Path], call: Call) -> None:
    """A record's fields; inside of one, where it starts."""
    store = golden("plain")
    log = CommitLog([store / "commitlog"])
    found = [r for r in records(log, 0, 262144) if isinstance(r, Record)][:2]
    shown = json_object(call("inspect", "record", store, found[1].physical_offset, "--json"))
    assert shown["topic"] == found[1].topic.decode()
    assert shown["queue_offset"] == found[1].queue_offset
    assert shown["body_crc_is_right"] is True
    (message,) = json_lines(
        call(
            "get", store, shown["topic"], shown["queue_id"], shown["queue_offset"], "--body", "none"
        )
    )
    alike = shown.keys() & message.keys()
    assert len(alike) == 14
    assert {name: shown[name] for name in alike} == {name: message[name] for name in alike}
    inside = json_object(call("inspect", "record", store, found[1].physical_offset + 5, "--json"))
    assert inside["stands_here"].startswith("bad_")
    assert inside["record_start_at_or_before"] == found[1].physical_offset
    outside = call("inspect", "record", store, 10**12)
    assert outside.returncode == 2


def test_inspect_queue_and_checkpoint(golden: Callable[[str], Path], call: Call) -> None:
    """Units with their records, and RocketMQ's positions as they stand in the file."""
    store = golden("broker")
    done = call("inspect", "queue", store, "Orders", 1, "--from", 3, "--count", 2, "--json")
    rows = json.loads(done.stdout)
    assert [row["queue_offset"] for row in rows] == [3, 4]
    assert {row["record"] for row in rows} == {"sound"}
    positions = json_object(call("inspect", "checkpoint", store, "--json"))
    stored = (store / "checkpoint").read_bytes()
    assert positions["store_checkpoint.physic_msg_timestamp"] == int.from_bytes(stored[:8], "big")
    assert positions["watermark"] is None
    assert call("inspect", "queue", store, "Nothing", 0).returncode == 2


def test_inspect_begins_at_the_first_unit_that_is_left(tmp_path: Path, call: Call) -> None:
    """Retention removes the first files of a queue; each unit keeps its number."""
    small = SmallStore(tmp_path)
    for _ in range(2 * UNITS_PER_FILE + 5):
        small.append()
    small.write()
    (tmp_path / "consumequeue" / "Topic" / "0" / file_name(0)).unlink()
    for first in (0, UNITS_PER_FILE - 1):
        place = ("queue", tmp_path, "Topic", 0, "--from", first, "--count", UNITS_PER_FILE + 2)
        rows = json.loads(call("inspect", *place, "--json").stdout)
        offsets = [row["queue_offset"] for row in rows]
        assert offsets == list(range(UNITS_PER_FILE, 2 * UNITS_PER_FILE + 2))


def test_produce_writes_what_the_workload_says_and_goes_on(tmp_path: Path, call: Call) -> None:
    """Two runs append to one log; every record is sound and encodes to the bytes there."""
    store = tmp_path / "store"
    produce = ("produce", store, "--rate", 0, "--topics", 3, "--queues", 2, "--json")
    sizes = ("--size", 100, "--commitlog-file-size", "256k", "--property-crc")
    first = json_object(call(*produce, "--count", 3000, *sizes))
    second = json_object(call(*produce, "--count", 500))
    assert (first["messages"], second["messages"]) == (3000, 500)
    log = CommitLog([store / "commitlog"])
    end = LogTail(log).settled()
    assert end == second["end_offset"]
    found = list(records(log, 0, end))
    assert len(found) == 3500
    next_offsets: dict[tuple[bytes, int], int] = {}
    for record in found:
        assert isinstance(record, Record)
        assert encode(record) == log.read(record.physical_offset, record.total_size)
        key = (record.topic, record.queue_id)
        assert record.queue_offset == next_offsets.get(key, 0)
        next_offsets[key] = record.queue_offset + 1
    workload = Workload(3, 2, 100, 1)
    assert next_offsets == {
        (topic, queue): workload.queue_length(t, queue, 3000) + workload.queue_length(t, queue, 500)
        for t, topic in enumerate(workload.topics)
        for queue in range(2)
    }


def test_produce_is_paced(tmp_path: Path) -> None:
    """No message comes before its time at the rate; a busy machine may only be late."""
    size = ("--commitlog-file-size", "4m")
    found = reput_json("produce", tmp_path / "s", "--rate", 1000, "--seconds", 2, *size)
    times = [record.store_timestamp for record in log_records(tmp_path / "s")]
    assert len(times) == found["messages"] > 1
    first = times.count(times[0])
    assert all(at - times[0] + 2 >= number - first for number, at in enumerate(times))


def test_demo_checks_every_message() -> None:
    """A short one; the table says that all of it is as it was appended, and was consumed."""
    done = reput("demo", "--seconds", 2, "--rate", 500, "--topics", 2, "--queues", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all as appended") == 2
    assert done.stdout.count("each once, in order") == 2
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("Topic_00")]
    assert [f"{row[2]}," for row in rows] == [row[6] for row in rows]
    assert sum(int(row[2].replace(",", "")) for row in rows) >= 500
    assert "Topic_001" in done.stdout
    # the rate that was asked for, and those of the progress meanwhile, are enough
    assert "/s" not in done.stdout


def test_version_and_help() -> None:
    """Every command is listed."""
    assert reput("--version").stdout.startswith("reput ")
    shown = reput("--help").stdout
    for command in ("run", "status", "inspect", "diff", "rebuild", "produce", "demo"):
        assert command in shown


def test_untrusted_text_is_not_taken_for_markup(tmp_path: Path, call: Call) -> None:
    """Brackets are shown as they are, control characters as escapes."""
    with Appender(tmp_path, file_size=4096) as appender:
        appender.append(Record(topic=b"[red]T\x1b[2J", body=b"[/bold]"))
    shown = call("inspect", "record", tmp_path, 0).stdout
    assert "[red]T\\x1b[2J" in shown
    assert "[/bold]" in shown
