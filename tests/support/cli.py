"""The command line as a user calls it: a process of its own, or the same in this process."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from reput.cli import main
from tests.support.processes import not_ended, process_tree

Call = Callable[..., subprocess.CompletedProcess[str]]
REPUT = [sys.executable, "-m", "reput"]
ROOT = Path(__file__).parent.parent.parent


def reput(*arguments: object, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [*REPUT, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
    )


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs a command in this process, which has imported everything already: a tenth of what
    ``reput`` takes, for tests of what a command does and not of how it starts and ends.

    Where a session is open, a run uses it, as it does under spark-submit.
    """
    loggers = [logging.getLogger(name) for name in ("reput", "py4j", None)]
    before = [(each.handlers, each.filters[:], each.level, each.propagate) for each in loggers]

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as changed, pytest.raises(SystemExit) as ended:
            changed.setattr(sys, "argv", ["reput", *map(str, arguments)])
            changed.setenv("PYSPARK_GATEWAY_PORT", "0")
            main()
        return subprocess.CompletedProcess([], int(ended.value.code or 0), *capsys.readouterr())

    yield run
    gc.unfreeze()  # the garbage of this process is not the command's alone
    for each, state in zip(loggers, before, strict=True):
        each.handlers, each.filters, each.level, each.propagate = state


def without_java(directory: Path) -> dict[str, str]:
    """An environment in which only JAVA_HOME could name a Java: its PATH is of programs that are
    linked in ``directory``, and of this Python's."""
    directory.mkdir()
    for name in ("bash", "chmod", "dirname", "ls", "ps", "uname"):
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{directory}"}
    environment.pop("JAVA_HOME", None)
    return environment


def json_object(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The object on the last line of a command's output."""
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if not isinstance(found, dict):
        raise AssertionError(f"no JSON object: {found}")
    return found


def json_lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The objects, one in each line, of a command whose output is not a terminal."""
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def reput_json(*arguments: object) -> dict[str, Any]:
    """Run a command with ``--json``; what it answers."""
    return json_object(reput(*arguments, "--json"))


def reput_on_terminal(*arguments: object, term: str = "dumb", columns: int = 400) -> str:
    """The bytes that a command sends to a terminal. A dumb one has 80 columns and no colours: there
    must be no escape sequence."""
    return on_terminal([*REPUT, *map(str, arguments)], term, columns)


def on_terminal(command: list[str], term: str, columns: int) -> str:
    """The bytes that any program sends to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": str(columns), "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        cwd=ROOT, env=environment,
    ):  # fmt: skip
        os.close(theirs)
        shown = bytearray()
        try:
            while data := os.read(ours, 1 << 16):
                shown += data
        except OSError as error:
            # how a terminal says that nobody is left on its other side
            if error.errno != errno.EIO:
                raise
    os.close(ours)
    return shown.decode()


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and everything that it started, workers in other groups too."""
    tree = process_tree(pid)
    for process in tree:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    not_ended(tree, 10)
