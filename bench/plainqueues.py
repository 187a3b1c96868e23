"""A plain C program that makes the directories and files of an output's queues, with the same
bytes, and syncs them: what the kernel and the disk take for them at least."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench import logs
from bench.logs import Log
from bench.processes import BenchError, run_to_exit
from reput.store.files import CONSUME_QUEUE_DIRECTORY
from reput.store.queue.mappedfilequeue import data_end

NAME = "C program"
SOURCE = Path(__file__).with_suffix(".c")
LIMIT_SECONDS = 3600.0


class PlainQueues:
    """The compiled program, and its plan for one output."""

    def __init__(self, output: Path, directory: Path) -> None:
        """Compile, and write the plan that makes the queues of ``output``; what is made is in
        ``directory``. Raises BenchError where there is no compiler."""
        self.cpu_seconds: list[float] = []
        """CPU seconds of each pass, without those of the kernel's own threads."""
        self._directory = directory
        self._program = _compile(directory)
        self._plan = directory / "plan"
        _write_plan(output, self._plan)

    def make(self) -> tuple[Path, float]:
        """Make all of it in a new directory, which stays; return that, and the seconds."""
        root = Path(tempfile.mkdtemp(prefix="plain-", dir=self._directory))
        os.sync()
        command = [str(self._program), str(self._plan), str(root)]
        _, answer = run_to_exit(command, "the C program", LIMIT_SECONDS)
        self.cpu_seconds.append(answer["cpu_seconds"])
        return root, float(answer["seconds"])

    def timed(self, log: Log) -> float:
        """Return the seconds of one pass. Raises BenchError where entries of the log are
        missing."""
        root, seconds = self.make()
        logs.check_queues(root, log)
        return seconds


def _compile(directory: Path) -> Path:
    if shutil.which("cc") is None:
        raise BenchError("there is no C compiler on PATH (cc)")
    program = directory / "plainqueues"
    done = subprocess.run(
        ["cc", "-O2", "-Wall", "-o", str(program), str(SOURCE)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"cc failed, exit {done.returncode}\n{done.stderr[-2000:]}")
    return program


def _write_plan(output: Path, plan: Path) -> None:
    """Write the program's plan; a directory comes before what is in it."""
    with plan.open("wb") as file:
        for directory, names, files in os.walk(output / CONSUME_QUEUE_DIRECTORY):
            names.sort()
            place = Path(directory)
            file.write(f"D {place.relative_to(output)}\n".encode())
            for path in (place / name for name in sorted(files)):
                with path.open("rb") as queue:
                    size, end = os.fstat(queue.fileno()).st_size, data_end(queue.fileno())
                    queue.seek(0)
                    data = queue.read(end).rstrip(b"\0")
                    file.write(f"F {path.relative_to(output)} {size} {len(data)}\n".encode())
                    file.write(data)
