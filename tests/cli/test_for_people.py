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
from reput.store.log.record import Record
from reput.workload.appender import Appender
from tests.cli.test_terminal import lines_on
from tests.support.cli import REPUT, ROOT, Call, json_lines, json_object, on_terminal, reput

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
