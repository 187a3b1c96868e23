"""Machines read JSON lines on stdout; progress and notes go to stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
import typer

from reput.cli import render
from reput.cli.printer import Result, printed
from reput.store.log.record import Record
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.ledger import Ledger, LedgerEntry
from reput.streaming.batchevent import COLLECT, COMMIT
from reput.streaming.progress import Progress, TotalProgress
from reput.workload.appender import Appender
from tests.streaming.test_golden import dispatch
from tests.support.cli import REPUT, ROOT, Call, json_object


def test_errors_are_json_where_json_is_asked_for(tmp_path: Path, call: Call) -> None:
    """Ours and those of the options; each with time and level, ours with the place."""
    for code, arguments, place in (
        (1, ["status", tmp_path], ["path"]), (2, ["status", tmp_path, "--nonsense"], []),
        (2, ["run"], []),
    ):  # fmt: skip
        done = call(*arguments, "--json")
        assert (done.returncode, done.stdout) == (code, "")
        (line,) = done.stderr.splitlines()
        found = json.loads(line)
        assert list(found) == ["time", "level", "event", "retriable", *place]
        assert found["level"] == "error"
        assert datetime.fromisoformat(found["time"]).tzinfo is not None


@pytest.mark.parametrize("terminal", ["stdout", "stderr"])
def test_a_note_has_a_time_where_stderr_is_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: str
) -> None:
    """People may read notes on a terminal while the answer goes to a file."""
    render.set_up(as_json=False)
    monkeypatch.setattr(getattr(sys, terminal), "isatty", lambda: True)
    render.print_note("a note")
    line = capsys.readouterr().err
    if terminal == "stderr":
        assert line == "reput: a note\n"
    else:
        assert re.fullmatch(r"[-0-9T:.]+Z info    a note\n", line)


def test_json_is_utf_8_as_it_is_and_still_harmless(tmp_path: Path) -> None:
    """The locale does not count; what could act on a terminal is escaped."""
    topic = "订单"
    with Appender(tmp_path, file_size=4096) as appender:
        appender.append(Record(topic=topic.encode(), body="é\x9b\u202e\x7f\U000e0001".encode()))
    done = subprocess.run(
        [*REPUT, "inspect", "record", str(tmp_path), "0", "--json"],
        capture_output=True, check=True, cwd=ROOT, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    text = done.stdout.decode("utf-8")
    assert f'"topic": "{topic}"' in text
    assert "é\\u009b\\u202e\\u007f\\udb40\\udc01" in text
    assert json.loads(text)["body"] == "é\x9b\u202e\x7f\U000e0001"


def test_progress_lines_come_when_something_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An idle run says nothing more, and one of which only faults are wanted says nothing."""
    monkeypatch.setattr(render, "PLAIN_SECONDS", -1.0)
    render.set_up(as_json=True)
    display = render.ProgressDisplay()
    for done in (1, 1, 1, 2, 2):
        display.update(done, 2, f"{done}", {"messages": done})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["messages"] for line in lines] == [1, 2]
    assert {(line["level"], line["event"]) for line in lines} == {("info", "dispatching")}
    render.set_log_level("warning")
    display.update(3, 3, "3", {"messages": 3})
    assert capsys.readouterr().err == ""
    render.set_up(as_json=False)


def test_a_progress_line_has_the_longest_times_since_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is so for one run and for several; without a batch there are none."""
    monkeypatch.setattr(render, "PLAIN_SECONDS", -1.0)
    one, other = Progress(), Progress()
    render.set_up(as_json=False)
    display = render.ProgressDisplay()

    def line(*runs: Progress) -> str:
        one.advance(one.position + 1, DispatchCounts())
        display(TotalProgress(runs) if len(runs) > 1 else one)
        (found,) = capsys.readouterr().err.splitlines()
        return found.rpartition("ETA unknown")[2]

    for seconds in ({"commit": 0.002, "write": 0.0005}, {"commit": 0.001, "write": 0.001}):
        one.note_stages(seconds)
    assert line(one) == " batches=2 max_commit_ms=2.0 max_write_ms=1.0"
    assert line(one) == ""
    one.note_stages({"commit": 0.004})
    other.note_stages({"commit": 0.03, "sync": 0.001})
    assert line(one, other) == " batches=2 max_commit_ms=30.0 max_sync_ms=1.0"
    one.note_stages({"commit": 0.004})
    render.set_up(as_json=True)
    one.advance(one.position + 1, DispatchCounts())
    display(one)
    found = json.loads(capsys.readouterr().err)
    assert (found["event"], found["batches"], found["max_commit_ms"]) == ("dispatching", 1, 4.0)
    render.set_up(as_json=False)


def test_a_replay_has_the_log_before_it() -> None:
    """Its lag is what it has to dispatch again, though the watermark is at the log's end; what is
    scanned of a batch counts at once."""
    progress = Progress(start_offset=0, end_offset=1000, log_end=1000)
    assert progress.lag_bytes == 1000
    assert progress.eta_seconds() is None
    progress.ahead_bytes = 600
    eta = progress.eta_seconds()
    assert eta is not None and eta > 0
    progress.advance(500, DispatchCounts(messages=5))
    assert (progress.lag_bytes, progress.ahead_bytes, progress.end_offset) == (500, 100, 1000)
    progress.advance(1000, DispatchCounts(messages=5))
    assert (progress.lag_bytes, progress.eta_seconds()) == (0, 0.0)


def test_what_is_scanned_is_part_of_the_lag(capsys: pytest.CaptureFixture[str]) -> None:
    """It counts even if the log's end was last seen before it, as at a start."""
    progress = Progress(start_offset=0, end_offset=0, log_end=0)
    progress.ahead_bytes = 3 << 20
    render.set_up(as_json=False)
    display = render.ProgressDisplay()
    display._due = 0.0
    display(progress)
    assert "lag 3.0 MiB (3.0 MiB of it scanned)" in capsys.readouterr().err


@pytest.mark.parametrize("codes", [(1, 0), (0, 2), (3, 2)])
def test_the_exit_code_is_that_of_the_last_answer(codes: tuple[int, int]) -> None:
    """A command that answers again and again ends as what it said last."""

    def answering() -> Iterator[Result]:
        for code in codes:
            yield Result({}, [], code)

    if codes[-1] == 0:
        printed(answering)(as_json=True)
        return
    with pytest.raises(typer.Exit) as ended:
        printed(answering)(as_json=True)
    assert ended.value.exit_code == codes[-1]


def test_produce_says_at_what_rate(tmp_path: Path, call: Call) -> None:
    """A count alone goes as fast as it can."""
    command = ("produce", tmp_path / "s", "--commitlog-file-size", "1m", "--count", 100)
    assert "100 messages, without a limit of the rate" in call(*command).stderr
    assert "100 messages, at 2,000 messages/s" in call(*command, "--rate", 2000).stderr
    assert "for 0 s, at 5,000 messages/s" in call(*command[:-2], "--seconds", 0).stderr


@pytest.mark.usefixtures("spark")
def test_status_tells_quarantine_gaps_lag_and_topics(tmp_path: Path, call: Call) -> None:
    """Notes name a damaged record, messages that came since, and a choice of one topic."""
    store, output = tmp_path / "store", tmp_path / "output"
    with Appender(store, file_size=1 << 16) as appender:
        for topic in (b"A", b"A", b"B", b"a/b"):
            appender.append(Record(topic, b"x", store_timestamp=1000))
    dispatch(store, output)
    ledger = Ledger(output / "reput")
    ledger.add(LedgerEntry(0, 1, "queue_offset_gap", "A", 0))
    ledger.sync()
    found = json_object(call("status", store, "--output", output, "--json"))
    assert (found["lag_seconds"], found["gaps"]) == (0.0, 1)
    assert [(one["reason"], one["ranges"]) for one in found["quarantine"]] == [("topic_name", 1)]
    (only,) = json_object(call("status", store, "--output", output, "--topic", "B", "--json"))[
        "queues"
    ]
    assert only["topic"] == "B"
    shown = call("status", store, "--output", output).stdout
    assert shown.count("\nA ") == shown.count("\nB ") == 1
    with Appender(store, file_size=1 << 16) as appender:
        stored = int(datetime.now().timestamp() * 1000) - 3_600_000
        appender.append(Record(b"A", b"x", store_timestamp=stored))
    assert json_object(call("status", store, "--output", output, "--json"))["lag_seconds"] >= 3600


@pytest.mark.usefixtures("spark")
def test_a_batch_is_one_event_in_json_and_in_text(tmp_path: Path, call: Call) -> None:
    """Its range, its messages and the time of each stage, by the same names; the events of a run
    join, from where it began to the watermark."""
    store = tmp_path / "store"
    with Appender(store, file_size=1 << 16) as appender:
        for _ in range(600):
            appender.append(Record(b"A", b"x" * 400))
    command = ("run", store, "--once", "--max-bytes-per-trigger", "64k", "--output")
    quiet = call(*command, tmp_path / "quiet").stderr
    assert " batch: " not in quiet
    assert re.findall(r"info    (begins|ended): (?:start|messages)=(\d+)", quiet) == [
        ("begins", "0"), ("ended", "600"),
    ]  # fmt: skip
    command = ("run", store, "--log-level", "debug", *command[2:])
    as_json = call(*command, tmp_path / "json", "--json")
    told = [json.loads(line) for line in as_json.stderr.splitlines()]
    events = [one for one in told if one["event"] == "batch"]
    assert len(events) >= 3
    ends = [0, *(one["end"] for one in events)]
    assert [one["start"] for one in events] == ends[:-1]
    assert ends[-1] == json_object(as_json)["end_offset"] == appender.end_offset
    assert sum(one["messages"] for one in events) == 600
    assert [one["batch_id"] for one in events] == list(range(len(events)))
    assert {one["level"] for one in events} == {"debug"}
    as_text = call(*command, tmp_path / "text").stderr
    lines = re.findall(r"^\S+Z? debug   batch: (.*)$", as_text, re.M)
    assert len(lines) == len(events)
    for line, event in zip(lines, events, strict=True):
        fields = dict(part.split("=") for part in line.split(" "))
        assert list(fields) == list(event)[3:]
        for name in ("batch_id", "start", "end", "messages", "duplicates", "quarantined_bytes"):
            assert fields[name] == str(event[name])
        stages = {name for name in fields if name.endswith("_ms")}
        assert stages == {f"{one}_ms" for one in (*COLLECT, *COMMIT)}
        parts = sum(event[f"{one}_ms"] for one in COMMIT[1:])
        assert 0 <= parts <= event["commit_ms"] + 1


@pytest.mark.usefixtures("spark")
def test_a_failed_batch_says_its_cause_first(tmp_path: Path, call: Call) -> None:
    """In both forms, in one line; the run's error says the same."""
    store = tmp_path / "store"
    with Appender(store, file_size=1 << 16) as appender:
        appender.append(Record(b"a/b", b"x"))
        appender.append(Record(b"A", b"x"))
    with (store / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(5)
        file.write(b"\x99")
    command = ("run", store, "--once", "--on-corrupt", "fail", "--output", tmp_path / "output")
    failed = call(*command, "--json")
    told = [json.loads(line) for line in failed.stderr.splitlines()]
    (event,) = (one for one in told if one["event"] == "batch failed")
    assert list(event)[:4] == ["time", "level", "event", "cause"]
    assert (failed.returncode, told[-1]["event"]) == (1, event["cause"])
    place = str(store / "commitlog" / f"{0:020}")
    assert (told[-1]["path"], told[-1]["physical_offset"]) == (place, 0)
    assert told[-1]["retriable"] is False
    assert (event["level"], event["start"]) == ("error", 0)
    (line,) = (line for line in call(*command).stderr.splitlines() if "batch failed" in line)
    assert f'batch failed: cause="{event["cause"]}" batch_id=0 start=0 ' in line


def test_an_error_about_a_file_has_it_as_a_field(golden: Callable[[str], Path], call: Call) -> None:
    """A queue, an index and a log file that were cut short; other fields are only there where the
    line has them."""
    store = golden("plain")
    for command, folder in (
        (("get", store, "Topic_1", "0", "0"), "consumequeue/Topic_1/0"),
        (("query", store, "Topic_1", "--key", "key"), "index"),
        (("status", store), "commitlog"),
    ):  # fmt: skip
        damaged = min((store / folder).iterdir())
        os.truncate(damaged, 100)
        failed = call(*command, "--json")
        found = json.loads(failed.stderr)
        assert (failed.returncode, found["path"]) == (1, str(damaged))
        assert list(found) == ["time", "level", "event", "retriable", "path"]
        assert str(damaged) in found["event"]
