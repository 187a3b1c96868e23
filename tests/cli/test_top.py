"""``reput top`` on a real pseudo-terminal: its figures are those of the store, and its keys act."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.checkpoints.followers import FollowerState, write_follower_state
from reput.store.config import read_store_settings
from reput.store.log.record import Record
from reput.store.state.ledger import Ledger, LedgerEntry
from reput.upkeep.watch.status import OutputStatus, read_status
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.support.cli import REPUT, reput
from tests.support.live_store import LiveStore
from tests.support.screen import Screen
from tests.upkeep.test_metrics import running, scraped

STAGES = ("collect", "commit", "write", "sync", "ledger", "watermark")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveStore]:
    """Six topics, of which Topic_N has N + 1 messages in each of two queues, all dispatched."""
    with LiveStore(tmp_path) as store:
        store.append(
            Record(topic=f"Topic_{number}".encode(), queue_id=queue, body=b"x" * 50)
            for number in range(6)
            for queue in (0, 1)
            for _ in range(number + 1)
        )
        store.dispatch()
        yield store


def top(store: LiveStore, *options: object, lines: int = 24, **environment: str) -> Screen:
    """The command on a terminal of 80 columns, watching a store's output."""
    command = (*REPUT, "top", store.root, "--output", store.output, *options)
    return Screen(*command, lines=lines, **environment)


def status(store: Path, output: Path) -> OutputStatus:
    return read_status(read_store_settings(store), output)


def rows(screen: Screen) -> list[list[str]]:
    """The cells of the view's rows, which stand between its heading and the last line."""
    columns = re.compile(r"\w+  .*\S {2,}\S")
    heading = next(at for at, line in enumerate(screen.lines) if columns.match(line))
    return [re.split(r" {2,}", line) for line in screen.lines[heading + 1 : -1] if line]


def stages_shown(screen: Screen) -> list[str | None]:
    """How often each stage has run, as the terminal shows it."""
    shown = {row[0]: row[1] for row in rows(screen)}
    return [shown.get(stage) for stage in STAGES]


def stages_of_metrics(url: str) -> list[str | None]:
    """The same from a run's metrics."""
    told = scraped(url)
    counts = (told[f'reput_stage_seconds_count{{stage="{stage}"}}'] for stage in STAGES)
    return [f"{count:.0f}" for count in counts]


def _stages_agree(screen: Screen, url: str) -> bool:
    screen.drain()
    return stages_shown(screen) == stages_of_metrics(url)


@pytest.mark.extended
def test_figures_beside_a_run_are_those_of_the_store(tmp_path: Path) -> None:
    """Queues, watermark, lag, batches and the writer; they follow a log that grows; the stages are
    those of the run's metrics, and unknown once the run has ended."""
    store, output, workload = tmp_path / "store", tmp_path / "output", Workload(2, 3, 100, seed=1)
    with Appender(store, file_size=1 << 20) as appender:
        appender.append_batch(workload.batch(0, 3000, time.time_ns() // 1_000_000))
        # a backlog, which Spark's tasks collect
        limit = ("--max-bytes-per-trigger", "256k")
        with running(store, "--output", output, "--metrics-port", 0, *limit) as (run, url):
            run.wait_until(lambda: scraped(url).get("reput_batches_total", 0) >= 1)
            address = url.removeprefix("http://").removesuffix("/metrics")
            command = (*REPUT, "top", store, "--output", output, "--metrics", address)
            with Screen(*command) as screen:
                screen.wait(
                    rf"^log +\[0, {appender.end_offset}\)$", r"^lag +0\.0 s, 0 messages, 0 B$"
                )
                appender.append_batch(workload.batch(3000, 2000, time.time_ns() // 1_000_000))
                screen.wait(
                    rf"^log +\[0, {appender.end_offset}\)$", r"^lag +0\.0 s, 0 messages, 0 B$",
                    rf"^watermark +{appender.end_offset}, written .* ago$", r"^followers +none$",
                    rf"^writer +process {run.process.pid}$", r"^faults +none$",
                    r"^rates +[1-9].*/s$",
                )  # fmt: skip
                queues = read_status(read_store_settings(store), output).queues
                assert {tuple(row[:4]) for row in rows(screen)} == {
                    (one.topic, str(one.queue_id), str(one.min_offset), str(one.max_offset))
                    for one in queues
                }
                assert sum(one.max_offset for one in queues) == 5000
                screen.press("3")
                screen.wait(rf"^\d+ +\d+ +{appender.end_offset} +\S+ \w+ +.* ago +durable$")
                screen.press("4")
                screen.wait(r"^stage ", r"^collect +[1-9]")
                # what is shown may be a second old
                run.wait_until(lambda: _stages_agree(screen, url))
                run.process.send_signal(signal.SIGTERM)
                screen.wait(
                    r"^writer +none$", r"^unknown: no metrics of a run at 127\.0\.0\.1 port"
                )
                screen.press("q")
                assert screen.exit_code() == 0
                assert not screen.is_taken()


def test_keys_sort_scroll_pause_and_change_the_view(live: LiveStore) -> None:
    """Each acts at once, whatever is being read."""
    with top(live, lines=17) as screen:
        screen.wait(r"1-6 of 12$")
        assert screen.is_taken()
        assert screen.standing_out(8).strip() == "1 queues"
        screen.press("s", "s", "s", "s", "s")
        screen.wait(r"by messages, 1-6 of 12$")
        assert [row[4] for row in rows(screen)] == list("665544")
        screen.press("r")
        screen.wait(r"^Topic_0 ")
        assert [row[4] for row in rows(screen)] == list("112233")
        screen.press("down", "page down")
        screen.wait(r"7-12 of 12$")
        assert [row[4] for row in rows(screen)] == list("445566")
        screen.press("home")
        screen.wait(r"1-6 of 12$")
        screen.press("end", "up")
        screen.wait(r"6-11 of 12$")
        screen.press("tab")
        screen.wait(r"by messages/s, 1-6 of 6$")
        assert rows(screen)[5][:3] == ["Topic_5", "2", "12"]
        screen.press("back tab", "back tab")
        screen.wait(r"^no faults$")
        screen.press("h")
        screen.wait(r"^q +quit$")
        screen.press("h")
        screen.wait(r"^no faults$")
        screen.press("1", "p")
        screen.wait(r"paused \d\d:\d\d:\d\dZ$")
        before = screen.lines
        live.append([Record(topic=b"New", body=b"x")])
        live.dispatch()
        screen.press("2", "1")
        screen.wait(r"of 12$")
        assert screen.lines[1:] == before[1:]
        screen.press("p")
        screen.wait(r"of 13$", r"^New ")


def test_a_new_size_is_followed(live: LiveStore) -> None:
    """Down to 40 columns and 12 lines, where the least important leaves, and up again; nothing is
    left of the old picture, and COLUMNS, which follows no window, does not count."""
    with top(live, COLUMNS="80", LINES="24") as screen:
        screen.wait(r"^writer +none$", r"of 12$")
        screen.resize(40, 12)
        screen.wait(r"^1 queues  2  3", r"^q quit  h help +by messages/s, 1-3 of 12$")
        assert [len(row) for row in rows(screen)] == [3, 3, 3]
        assert screen.lines[1].startswith("lag        0.0 s, 0 messages")
        assert "writer" not in screen.text
        screen.resize(20, 3)
        screen.wait(r"^q quit")
        screen.resize(100, 30)
        screen.wait(r"^writer +none$", r"2 topics", r"of 12$")
        assert len(rows(screen)) == 12
        assert len(screen.lines[0]) == 100
    assert b"\x1b[2J" not in screen.sent, "what is erased before it is drawn flickers"


def test_what_cannot_be_read_is_unknown_and_hides_nothing_else(live: LiveStore) -> None:
    """A queue file of another size, a follower's file, the ledger, Spark's checkpoint, and at last
    the watermark; each is a fault, none is 0."""
    state = live.output / "reput"
    (queue,) = (live.output / "consumequeue" / "Topic_3" / "1").iterdir()
    with queue.open("ab") as file:
        file.write(b"x")
    with top(live) as screen:
        screen.wait(r"^Topic_3 +1 +unknown +unknown +unknown +unknown$", r"^rates +unknown")
        screen.wait(r"^faults +1: queues: ", r"^Topic_4 +1 +0 +5 +5 ", r"^lag +0\.0 s")
        (state / "followers").mkdir()
        (state / "followers" / "delta.json").write_text("{")
        (state / "quarantine.jsonl").write_text('{"physical_offset": "x"}\n')
        (state / "spark" / "offsets").mkdir(parents=True)
        (state / "spark" / "offsets" / "0").write_text("v1\n{}\n")
        screen.press("6")
        screen.wait(
            r"^queues: consume queue file ", r"^followers: cannot read ", r"^followers +unknown$",
            r"^quarantine: damaged_line, 1 range of 0 bytes$",
            r"^spark's checkpoint: offsets/0 is damaged",
        )  # fmt: skip
        (state / "watermark").write_bytes(bytes(4200))
        screen.wait(
            r"^watermark +unknown$", r"^lag +unknown$", r"^watermark: (.|\n)*both slots of it"
        )
        screen.press("3")
        screen.wait(r"^unknown: there is no watermark$")
        screen.press("4")
        screen.wait(r"^unknown: start the run with --metrics-port")
        screen.press("q")
        assert screen.exit_code() == 0


def test_a_log_that_was_cut_has_no_lag(live: LiveStore) -> None:
    """It is said why: 0 would look healthy."""
    end = status(live.root, live.output).log_end
    with top(live) as screen:
        screen.wait(r"^lag +0\.0 s")
        with (live.root / "commitlog" / f"{0:020}").open("r+b") as file:
            file.seek(end // 2)
            file.write(bytes(end - end // 2))
        screen.wait(r"^lag +unknown$", r"^faults +1: log: the log ends at \d+, before the waterm")


def test_followers_and_faults_are_shown_without_acting(live: LiveStore) -> None:
    """Position, lag and error; escapes in names and errors are shown as such."""
    state, end = live.output / "reput", status(live.root, live.output).log_end
    evil = "T\x1b[2J\x1b]0;x\x07"
    (live.output / "consumequeue" / evil / "0").mkdir(parents=True)
    for follower in (
        FollowerState("delta", "table", position=end - 5, rows=1234),
        FollowerState("kafka", "mirror", error=f"no broker {evil}", failing_since="2026-01-31"),
    ):
        write_follower_state(state, follower)
    ledger = Ledger(state)
    ledger.add(LedgerEntry(3, 10, "bad_magic"))
    ledger.add(LedgerEntry(20, 20, "queue_offset_gap"))
    ledger.sync()
    with top(live) as screen:
        screen.wait(r"^followers +delta lag 5 B; kafka lag unknown, failing$")
        screen.wait(r"^faults +3: follower kafka: no broker T\\x1b")
        screen.press("5")
        screen.wait(rf"^delta +{end - 5} +5 B +1,234 +0 +ok$", r"^kafka +unknown +unknown +0 ")
        screen.press("6")
        screen.wait(r"^quarantine: bad_magic, 1 range of 7 bytes$", r"^gaps: .* 1 place$")
        screen.press("1", "s", "s")
        screen.wait(r"^T\\x1b\[2J\\x1b\]0;x\\x07 +0 ")
    assert b"\x1b[2J" not in screen.sent
    assert b"\x1b]0" not in screen.sent


@pytest.mark.parametrize("how", ["q", "ctrl-c", "SIGTERM"])
def test_the_terminal_is_as_it_was(live: LiveStore, how: str) -> None:
    """However it ends, with exit code 0; and while Ctrl-Z has stopped it."""
    with top(live) as screen:
        screen.wait(r"of 12$")
        assert screen.is_taken()
        if how == "q":
            screen.press("ctrl-z")
            assert os.WIFSTOPPED(os.waitpid(screen.process.pid, os.WUNTRACED)[1])
            screen.drain()
            assert not screen.is_taken()
            screen.process.send_signal(signal.SIGCONT)
            screen.press("2")
            screen.wait(r"of 6$")
            assert screen.is_taken()
        if how == "SIGTERM":
            screen.process.terminate()
        else:
            screen.press(how)
        assert screen.exit_code() == 0
        assert not screen.is_taken()


def test_it_writes_nothing(live: LiveStore) -> None:
    """Neither in the output nor in the store: every file keeps its times."""

    def times() -> dict[Path, tuple[int, int]]:
        paths = [live.root, live.output, *live.root.rglob("*"), *live.output.rglob("*")]
        return {path: ((found := path.stat()).st_mtime_ns, found.st_ctime_ns) for path in paths}

    before = times()
    with top(live) as screen:
        screen.wait(r"of 12$")
        first = screen.lines[0]
        screen.wait(rf"^(?!{re.escape(first)}$)reput top")
        screen.press("q")
        assert screen.exit_code() == 0
    assert times() == before


def test_without_colours(live: LiveStore) -> None:
    """NO_COLOR leaves bold and reverse alone, and a fault is red without it."""
    (live.output / "reput" / "followers").mkdir()
    (live.output / "reput" / "followers" / "delta.json").write_text("{")
    for environment, colours in (({}, {"default", "red"}), ({"NO_COLOR": "1"}, {"default"})):
        with top(live, **environment) as screen:
            screen.wait(r"^faults +1: followers", r"of 12$")
            assert screen.colours() == colours
            assert screen.standing_out(8).strip() == "1 queues"


def test_without_a_terminal_it_names_status(live: LiveStore) -> None:
    """One line, exit code 2: for a pipe, and for a terminal that cannot place its cursor."""
    done = reput("top", live.root, "--output", live.output)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert f"reput status {live.root} --output {live.output} shows the same" in done.stderr
    with Screen(*REPUT, "top", live.root, TERM="dumb") as screen:
        assert screen.exit_code() == 2
    assert b"reput status" in screen.sent
    assert b"\x1b" not in screen.sent


def test_a_wrong_call_is_answered_before_the_screen(live: LiveStore) -> None:
    """Exit code 2, one line; a store that is not there yet is waited for."""
    with Screen(*REPUT, "top", live.root, "--metrics", "x:y", columns=400) as screen:
        assert screen.exit_code() == 2
        assert not screen.is_taken()
    assert screen.sent.startswith(b"reput: error: ")


def test_what_serves_no_metrics_is_a_fault(live: LiveStore) -> None:
    """Another server at the address: its answer is named, nothing else is hidden."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with top(live, "--metrics", port) as screen:
            taken, _ = server.accept()
            with taken:
                taken.sendall(b"SSH-2.0-x\r\n")
            screen.wait(rf"^faults +1: metrics: no metrics of a run at 127\.0\.0\.1 port {port}")
            screen.wait(r"of 12$")
