"""A command that follows a store waits for what heals by itself, with one line, and goes on.

The states are those of a new broker, of a disk that is not mounted yet, and of a file that is being
written over. A wrong call ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import typer

from reput.cli.render import when_ready
from reput.store.config import read_store_settings
from reput.store.errors import NotReadyError, ReputError, UsageError
from reput.store.log.record import Record
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.output import check_is_output
from reput.store.stores import find_stores
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from reput.streaming.waiting import until_ready
from reput.workload.appender import Appender
from tests.support.cli import Call
from tests.support.configs import configured

TORN = '{"dataVersion":{"counter":3},"topicConfigTable":{"T'
WHOLE = '{"topicConfigTable":{}}'
Step = Callable[[], object]


def make(path: Path, text: str | None = None) -> Step:
    """A step that makes a file, or a directory."""

    def step() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.mkdir()
        else:
            path.write_text(text)

    return step


def states(root: Path) -> dict[str, tuple[Step, Sequence[Step], Sequence[str]]]:
    """By name: what is asked of a store, what comes one after another, and words of each line."""
    store, conf = root / "store", root / "own.conf"
    topics, log = store / "config" / "topics.json", root / "disk" / "log"
    config = DispatcherConfig(store, root / "out")
    return {
        "a new broker": (
            config.open_store,
            [make(store), make(store / "commitlog")],
            [f"there is no directory {store}", f"no commitlog in {store}"],
        ),
        "a log on another disk": (
            config.open_store,
            [make(store / "broker.conf", f"storePathCommitLog={log}\n"), make(log)],
            [f"there is no directory {store}", f"{log}, which storePathCommitLog"],
        ),
        "a file of settings": (
            lambda: read_store_settings(store, conf),
            [make(store / "commitlog"), make(conf, "")],
            [f"there is no directory {store}", f"there is no file {conf}"],
        ),
        "a torn file": (
            config.open_store,
            [make(topics, TORN), make(store / "commitlog"), make(topics, WHOLE)],
            [f"there is no directory {store}", "no commitlog", f"{topics} is not whole"],
        ),
        "several stores": (
            lambda: find_stores(f"{root}/st*", root / "outputs"),
            [make(store), make(store / "commitlog")],
            ["which no directory matches yet", "nothing that matches has a commitlog"],
        ),
        "an output": (
            lambda: check_is_output(root / "out", store),
            [make(root / "out"), make(root / "out" / "consumequeue")],
            [f"there is no directory {root / 'out'}", f"{root / 'out'} is not an output"],
        ),
    }


class Steps(threading.Event):
    """A stop that is never set; whoever waits for it finds that the next thing has come."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self._steps = iter([lambda: None, *steps])

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        next(self._steps)()
        return False


@pytest.mark.parametrize("name", states(Path()))
def test_each_thing_that_is_missing_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A line for each, though each is looked for twice; then one that it goes on."""
    caplog.set_level(logging.INFO)
    ask, steps, words = states(tmp_path)[name]
    with pytest.raises(NotReadyError):
        ask()
    assert until_ready(lambda: [ask()], Steps(steps)) is not None
    *waits, last = [record.getMessage() for record in caplog.records]
    assert len(waits) == len(words)
    for line, word in zip(waits, words, strict=True):
        assert line.startswith("waiting: ")
        assert word in line
    assert last.startswith("going on: ")


def test_a_wrong_call_ends_at_once(tmp_path: Path) -> None:
    """Nothing that comes would heal it; and what is stopped while it waits has no result."""
    (tmp_path / "file").write_text("")
    for wrong in (
        lambda: read_store_settings(tmp_path / "file"),
        lambda: read_store_settings(tmp_path, tmp_path / "file" / "x"),
    ):
        with pytest.raises(ReputError) as caught:
            until_ready(wrong, Steps([]))
        assert not isinstance(caught.value, NotReadyError)
    stop = threading.Event()
    stop.set()
    assert until_ready(lambda: 1, stop) is None
    none = run_dispatcher(DispatcherConfig(tmp_path / "store", tmp_path / "output"), stop)
    assert (none.start_offset, none.end_offset, none.counts) == (0, 0, DispatchCounts())


def test_a_stop_while_the_store_is_opened_counts() -> None:
    """A command would go on for ever otherwise: nobody looks at a signal of this moment later."""

    def opened() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 1

    with pytest.raises(typer.Exit):
        when_ready(opened)


def test_what_is_not_there_is_a_failure_and_no_wrong_call(tmp_path: Path, call: Call) -> None:
    """Exit code 1, so that a unit starts again; 2 is for what would be as wrong the next time."""
    store = tmp_path / "store"
    for arguments, code in (
        (("run", store, "--once"), 1),
        (("run", "--stores", f"{tmp_path}/b-*", "--outputs", tmp_path / "o", "--once"), 1),
        (("status", store), 1),
        (("verify", store), 1),
        (("run", store, "--once", "--on-queue-gap", "never"), 2),
        (("serve",), 2),
    ):
        done = call(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert len(done.stderr.splitlines()) == 1, done.stderr


FOLLOWING = {
    "run": ("run", "{0}/store", "--output", "{0}/out"),
    "run --stores": ("run", "--stores", "{0}/st*", "--outputs", "{0}/outs"),
    "shadow": ("shadow", "{0}/store", "--output", "{0}/out"),
    "serve": ("serve", "{0}/store", "--listen", "127.0.0.1:0"),
    "serve --stores": ("serve", "--stores", "{0}/st*", "--listen", "127.0.0.1:0"),
    "top": ("top", "{0}/store"),
    "status --watch": ("status", "{0}/store", "--watch"),
    "status --stores --watch": (
        "status", "--stores", "{0}/st*", "--outputs", "{0}/outs", "--watch",
    ),
    "tail --follow": ("tail", "{0}/store", "T", "--follow"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWING)
def test_commands_that_follow_a_store_wait_for_it(tmp_path: Path, call: Call, name: str) -> None:
    """One line, and a stop ends the wait with exit code 0; nothing is made meanwhile."""

    def stop_it(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("waiting: "):
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    logging.getLogger("reput").addFilter(stop_it)
    done = call(*(word.format(tmp_path) for word in FOLLOWING[name]))
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert "waiting: " in line
    assert f"{tmp_path}/st" in line
    assert list(tmp_path.iterdir()) == []


class Broker(logging.Handler):
    """A broker that writes its topics over: torn while messages come, whole once the run waits."""

    def __init__(self, store: Path, stop: threading.Event) -> None:
        super().__init__()
        self._topics = store / "config" / "topics.json"
        self._topics.parent.mkdir(parents=True)
        self._topics.write_text(WHOLE)
        self._store, self._stop = store, stop
        self.lines: list[str] = []
        self.end = self._append()

    def _append(self) -> int:
        with Appender(self._store, file_size=1 << 16) as appender:
            for _ in range(20):
                appender.append(Record(topic=b"T", body=b"body"))
            return appender.end_offset

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if self.lines[-1].startswith("waiting: "):
            self._topics.write_text(WHOLE)

    def see(self, progress: Progress) -> None:
        if progress.end_offset == self.end:
            if any(line.startswith("going on: ") for line in self.lines):
                self._stop.set()
            elif "torn" not in self.lines:
                self.lines.append("torn")
                self._topics.write_text(TORN)
                self.end = self._append()


@pytest.mark.usefixtures("spark")
def test_a_run_goes_on_when_a_torn_file_is_whole_again(tmp_path: Path) -> None:
    """The query ends by it, and another one dispatches what has come meanwhile."""
    store, stop = tmp_path / "store", threading.Event()
    store.mkdir()
    broker, logger = Broker(store, stop), logging.getLogger("reput")
    config = configured(store, tmp_path / "out", index=False, latency_ms=10)
    logger.addHandler(broker)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        progress = run_dispatcher(config, stop, broker.see)
    finally:
        logger.removeHandler(broker)
        logger.setLevel(level)
    assert progress.summary()["messages"] == 40
    assert progress.end_offset == broker.end
    assert (tmp_path / "out" / "consumequeue" / "T" / "0" / f"{0:020}").stat().st_size == 6_000_000
    restarts = [line for line in broker.lines if line.startswith("the query has ended")]
    assert len(restarts) == 1
    assert "topics.json is not whole" in restarts[0]


def test_a_usage_error_is_none_of_these() -> None:
    """The tree of errors keeps them apart."""
    assert not issubclass(NotReadyError, UsageError)
    assert (NotReadyError.exit_code, UsageError.exit_code) == (1, 2)
