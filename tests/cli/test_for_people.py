"""People read one style in all commands: names, numbers and times; machines read JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import render
from reput.sources.plainspark import PLAIN_VARIABLE
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.streaming.config import DispatcherConfig
from reput.workload.appender import Appender
from tests.cli.test_terminal import lines_on
from tests.readers.test_grouplag import write_offsets
from tests.support.cli import REPUT, ROOT, Call, json_lines, json_object, on_terminal, reput
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.live_store import LiveStore
from tests.support.sparkless import dispatch

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
BUSY_BAR = """
import time
from reput.cli import render
render.set_up(as_json=False)
done, end = 0, time.monotonic() + 3
with render.ProgressDisplay() as display:
    while time.monotonic() < end:
        done += 1
        display.update(done, 1 << 30, f"{done:,} messages, 12,345/s, 1.2 GiB/s, lag 0 B", {})
"""


def test_one_record_looks_the_same_in_get_and_inspect(golden: Callable[[str], Path]) -> None:
    """Each field by the same words; what ``get`` shows as tags, keys and unique key is no property
    there again."""
    store = golden("broker")
    got = dict(re.split(r"  +", line, maxsplit=1)
               for line in lines_on(100, "get", store, "Orders", 0, 0)[1:])  # fmt: skip
    inspected = dict(re.split(r"  +", line, maxsplit=1)
                     for line in lines_on(100, "inspect", "record", store, 314)[1:])  # fmt: skip
    common = got.keys() & inspected.keys()
    assert len(common) > 15
    assert {name: got[name] for name in common} == {name: inspected[name] for name in common}
    assert re.fullmatch(TIME, got["store timestamp"])
    assert not any("_" in name or name != name.lower() for name in got if "property" not in name)
    doubled = {"property TAGS", "property KEYS", "property UNIQ_KEY"}
    assert doubled <= inspected.keys()
    assert not doubled & got.keys()
    assert {"tags", "keys", "unique key"} <= got.keys()


def test_counts_are_grouped_for_people_alone(tmp_path: Path, call: Call) -> None:
    """An offset stays as options take it."""
    with Appender(tmp_path, file_size=1 << 20) as appender:
        for _ in range(3):
            appender.append(Record(topic=b"T", body=b"x" * 5000))
    command = ("inspect", "record", tmp_path, appender.end_offset // 3)
    shown, found = call(*command).stdout, json_object(call(*command, "--json"))
    assert found["size"] == found["physical_offset"] > 5000
    assert re.search(rf"^size +{found['size']:,}$", shown, re.M)
    assert re.search(rf"^physical offset +{found['physical_offset']}$", shown, re.M)
    assert re.search(r"^body length +5,000$", shown, re.M)


def test_sql_shows_values_as_they_are_written(golden: Callable[[str], Path], call: Call) -> None:
    """NaN, intervals and times, also within lists; JSON has no NaN of its own."""
    pytest.importorskip("duckdb")
    query = (
        "select 'nan'::double n, interval '5 seconds' i, [interval '1 hour'] l, "
        "timestamptz '2026-01-02 03:04:05+01' z, timestamp '2026-01-02 03:04:05' t"
    )
    shown = lines_on(200, "sql", golden("broker"), query)
    assert re.split(r"  +", shown[2]) == [
        "NaN", "P0M0DT5S", "P0M0DT3600S", "2026-01-02T02:04:05.000Z", "2026-01-02T03:04:05",
    ]  # fmt: skip
    done = call("sql", golden("broker"), query)
    (found,) = json_lines(done)
    assert (found["n"], found["i"], found["l"]) == ("NaN", "P0M0DT5S", ["P0M0DT3600S"])
    json.loads(done.stdout, parse_constant=pytest.fail)


def test_stores_are_a_table_of_80_columns(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A line for each store, faults on as many as they need."""
    for name in ("broker-a", "broker-b"):
        shutil.copytree(golden("broker"), tmp_path / "stores" / name)
        (tmp_path / "outputs" / name / "reput").mkdir(parents=True)
    shutil.rmtree(tmp_path / "stores" / "broker-b" / "commitlog")
    several = ("--stores", tmp_path / "stores" / "*", "--outputs", tmp_path / "outputs")
    shown = lines_on(80, "status", *several)
    assert re.split(r"  +", shown[1]) == [
        "store", "watermark", "lag", "in bytes", "writer", "faults",
    ]  # fmt: skip
    assert re.fullmatch("─+", shown[2])
    assert [line.split()[0] for line in shown[3:5]] == ["broker-a", "broker-b"]
    assert shown[4].endswith("cannot be read")


def test_a_bar_leaves_a_slow_line_free() -> None:
    """Less than 3 kB a second, however often it is told of progress."""
    sent = on_terminal([sys.executable, "-c", BUSY_BAR], "xterm", 120)
    assert 4 <= sent.count("messages, 12,345/s") <= 9
    assert len(sent.encode()) < 3 * 3000


def test_a_file_of_stderr_has_one_form_of_lines(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes and progress have time and level, as lines of the log have."""
    monkeypatch.setattr(render, "PLAIN_SECONDS", -1.0)
    command = ("produce", tmp_path / "s", "--commitlog-file-size", "1m", "--count", 100)
    lines = call(*command).stderr.splitlines()
    assert len(lines) >= 2
    for line in lines:
        assert re.match(rf"{TIME} info    (appending to |appending: \d+ messages, )", line), line


def test_a_pipe_gets_whole_lines_without_styles(golden: Callable[[str], Path]) -> None:
    """The environment may say otherwise: it tells of the terminal at the pipe's end."""
    environment = {
        **os.environ, "COLUMNS": "20", "TERM": "xterm-256color", "FORCE_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    command = [*REPUT, "status", str(golden("broker"))]
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment)
    text = done.stdout.decode()
    assert "\x1b" not in text
    assert re.search(r"^topic +queues  messages$", text, re.M)
    assert re.search(r"^Orders +4 +6,000$", text, re.M)
    assert re.search(r"^waiting .*, which only a broker delivers$", text, re.M)
    assert not any(line.endswith(" ") for line in text.splitlines())


def check_prepared(done: subprocess.CompletedProcess[str]) -> str:
    """Return the rest of the one line on stdout."""
    assert done.returncode == 0, done.stderr
    (note,) = done.stderr.splitlines()
    assert re.fullmatch(rf"{TIME} info    compiling .*; this takes half a minute", note)
    (line,) = done.stdout.splitlines()
    assert line.startswith("prepared: ")
    return line.removeprefix("prepared: ")


@pytest.mark.slow
def test_preparing_makes_an_archive() -> None:
    """Loading Spark's classes is half of its start."""
    assert Path(check_prepared(reput("prepare"))).stat().st_size > 1 << 20


@pytest.mark.usefixtures("spark")
def test_preparing_says_how_long_it_takes_and_nothing_of_its_own_store(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make install`` ends with it: a run's log of a store that nobody knows would look like a
    failure, and silence for minutes like a hang. There is no archive where Spark's own scripts
    start the JVM."""
    monkeypatch.setenv(PLAIN_VARIABLE, "1")
    assert check_prepared(call("prepare")).startswith("kernels only, ")
    command = ["make", "--no-print-directory", "--dry-run", "--always-make", "install"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    steps = [line for line in made.stdout.splitlines() if not line.startswith("touch ")]
    at = next(number for number, line in enumerate(steps) if " pip install " in line)
    assert re.match("echo .* takes a few minutes", steps[at - 1])
    assert steps[-1].startswith('echo "installed: ')


def test_minus_one_is_none_where_it_means_that(tmp_path: Path, call: Call) -> None:
    """No record lies before the first one. But an application may set any flag, and a tag have any
    hash: in Java, that of this one is -1."""
    tag = b"TAGS\x01bmgkAEr\x02"
    with LiveStore(tmp_path) as live:
        live.append([Record(topic=b"T", flag=-1, properties=tag)])
        live.dispatch()
    inside = call("inspect", "record", live.root, 1).stdout
    assert re.search(r"^last record before +none$", inside, re.M)
    place = (live.root, "T", 0, "--output", live.output)
    for command in (("inspect", "record", live.root, 0), ("get", *place[:3], 0, *place[3:])):
        shown = "\n".join(lines_on(200, *command))
        assert re.search(r"^flag +-1$", shown, re.M)
        assert re.search(r"^prepared transaction offset +none$", shown, re.M)
    (unit,) = re.findall(r"^0 .*", call("inspect", "queue", *place).stdout, re.M)
    assert "-1" in unit.split()
    assert "none" not in unit


def test_what_a_rewind_kept_is_shown_with_both_ends(tmp_path: Path, call: Call) -> None:
    """The end that the output had, and the place to which it went back."""
    output = DerivedOutput.unpack("broker", tmp_path)
    output.start()
    records = log_records(output.store)
    last, middle = records[-1], records[len(records) // 2].physical_offset
    places = (output.store, "--output", output.root)
    call("checkpoints", "rewind", *places, "--to-offset", middle, "--apply")
    for command in ("list", "prune"):
        shown = [re.split(r"  +", line) for line in lines_on(200, "checkpoints", command, *places)]
        heading = ["kept", "bytes", "rewound", "from", "to"]
        (row,) = shown[shown.index(heading) + 2 : shown.index(heading) + 3]
        assert re.fullmatch(TIME, row[2])
        assert row[3:] == [str(last.physical_offset + last.total_size), str(middle)]


def test_offsets_stand_below_their_headings(tmp_path: Path, call: Call) -> None:
    """Each of the numbers of a queue is another one: its log has lost the first messages, and a
    group has consumed some of the others."""
    with LogAppender(tmp_path, file_size=1 << 12) as appender:
        appender.append_all([Record(topic=b"T", body=b"x" * 500)] * 20)
        middle = appender.end_offset
        appender.append_all([Record(topic=b"T", body=b"x" * 500)] * 3)
    dispatch(DispatcherConfig(tmp_path, tmp_path, once=True))
    first, *_ = sorted((tmp_path / "commitlog").iterdir())
    lost = sum(record.physical_offset < 1 << 12 for record in log_records(tmp_path))
    first.unlink()
    (tmp_path / "config").mkdir(exist_ok=True)
    write_offsets(tmp_path, {("T", "g"): {0: 11}})

    def row(heading: list[str], *command: object) -> list[str]:
        shown = [re.split(r"  +", line) for line in call(*command).stdout.splitlines()]
        at = next(at for at, cells in enumerate(shown) if cells[: len(heading)] == heading)
        return shown[at + 2][: len(heading)]

    assert lost not in (0, 11)
    bounds = ["T", "0", str(lost), "23"]
    heading = ["topic", "queue", "min offset", "max offset"]
    assert row(heading, "status", tmp_path, "--topic", "T") == bounds
    assert row(["topic", "queue", "min", "max", "committed"], "groups", "show", tmp_path, "g") == [
        *bounds, "11"
    ]  # fmt: skip
    skipped = ("groups", "skip", tmp_path, "g")
    assert row(["topic", "queue", "committed", "new"], *skipped) == ["T", "0", "11", "23"]
    checkpoint = call("inspect", "checkpoint", tmp_path).stdout
    assert re.search(r"^store checkpoint master flushed offset +none$", checkpoint, re.M)
    heading = ["topic", "queue", "from offset", "to offset", "messages"]
    grown = ("diff", tmp_path, "--since", f"offset:{middle}")
    assert row(heading, *grown) == ["T", "0", "20", "23", "3"]
