"""Whole runs of ``reput run`` with Spark, for kinds that harm one of its processes or their calls.

A bench has one of RocketMQ's stores and an output. Runs follow one another on it until one ends
undisturbed; then queues are RocketMQ's own, ``verify`` finds nothing, and nothing is in quarantine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from reput.store.config import read_store_settings
from reput.store.files import STATE_DIRECTORY
from reput.store.state.built import settings_of
from reput.store.state.watermark import read_watermark
from reput.upkeep.verify.run import verify
from tests.support.cli import REPUT, ROOT, kill_tree, reput
from tests.support.golden import difference, unpack_golden
from tests.support.processes import not_ended, process_tree

NAME = "mixed"
"""Transactions, delayed messages and several topics."""
TRIGGER = "100k"
"""A batch of this size: a run has about twenty."""
LOOK_SECONDS = 0.5
LONGEST_LOOKS = 600
END_SECONDS = 60.0
ERROR = "reput: error: "


class Run:
    """One run as a child process."""

    def __init__(self, store: Path, output: Path, environment: Mapping[str, str]) -> None:
        self._output = output
        self.process = subprocess.Popen(
            [*REPUT, "run", str(store), "--output", str(output), "--once", "--index",
             "--max-bytes-per-trigger", TRIGGER],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **environment},
        )  # fmt: skip

    def tree(self) -> list[psutil.Process]:
        """The run and all processes below it; none once it has ended."""
        return process_tree(self.process.pid)

    def sequence(self) -> int:
        """How often the output's watermark was written, by this run or earlier ones."""
        found = read_watermark(self._output / STATE_DIRECTORY)
        return found.sequence if found else 0

    def end(self, tree: list[psutil.Process], *, may_be_killed: bool) -> str:
        """Wait for its end, and that of the processes of ``tree``, and say how it ended: by itself,
        with one line of ours, or killed."""
        try:
            said = self._wait()
            left = not_ended(tree, END_SECONDS)
            assert not left, left
        finally:
            for process in tree:
                kill_tree(process.pid)
        code = self.process.returncode
        if code < 0 and may_be_killed:
            return "killed"
        assert "Traceback" not in said, said
        lines = [line for line in said.splitlines() if line.startswith(ERROR)]
        assert (code, len(lines)) in ((0, 0), (1, 1)), f"exit {code}: {said}"
        return "ended with a line" if lines else "went on"

    def _wait(self) -> str:
        """Its stderr once it has ended. Looks are counted and not the clock's time: the machine may
        stand still for minutes."""
        for _ in range(LONGEST_LOOKS):
            try:
                return self.process.communicate(timeout=LOOK_SECONDS)[1]
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"the run hangs: {self.tree()}")


class SparkBench:
    """One store without an output."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is emptied."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        self.store, self.output = unpack_golden(NAME, directory), directory / "output"

    def start(self, environment: Mapping[str, str] | None = None) -> Run:
        """Start a run."""
        return Run(self.store, self.output, environment or {})

    def check(self) -> None:
        """Let an undisturbed run do what is left, and compare."""
        done = reput("run", self.store, "--output", self.output, "--once", "--index", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["quarantined_bytes"] == 0
        assert difference(self.output / "consumequeue", self.store / "consumequeue") == []
        found = verify(settings_of(self.output, read_store_settings(self.store)), self.output)
        assert found.differences == ()
        assert found.index_entries > 0
        assert not (self.output / STATE_DIRECTORY / "quarantine.jsonl").exists()
        assert not (self.output / STATE_DIRECTORY / "abort").exists()
