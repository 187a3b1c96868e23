"""Everything that lives during a soak: the appender, the run with its process tree, the consumer.

The output lies on a small disk of its own, a tmpfs in a mount namespace; store and Delta table lie
beside it.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from reput.sinks.delta.table import DeltaTarget
from reput.store.config import read_store_settings
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import offset_to_file_name
from reput.store.state.watermark import Watermark, read_watermark
from tests.soak.consumer import Consumer
from tests.soak.madelog import FILE_SIZE, write_settings
from tests.support.cli import REPUT, ROOT, kill_tree
from tests.support.processes import module_command, not_ended, process_tree
from tests.support.smalldisk import SmallDisk

DISK_BYTES = 512 << 20
KEPT_FILES = 12
"""Files of the log that retention leaves besides those that somebody still needs."""
POLL_SECONDS = 0.05
END_SECONDS = 1200.0
PROGRESS_SECONDS = 3600.0
"""As long as a machine may be busy with what is more urgent."""
STORE_ID = "soak"
TREES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")


class SoakError(AssertionError):
    """A promise is broken."""


@dataclass
class Started:
    """One run and what it says."""

    process: subprocess.Popen[bytes]
    errors: Path
    port: int
    position: int
    """The watermark when it began."""
    may_end: bool = False
    """Whether a fault has hit it that may end it."""

    @property
    def said(self) -> str:
        """Its stderr."""
        return self.errors.read_text("utf-8", "replace")

    def tree(self) -> list[psutil.Process]:
        """The processes below it, and it."""
        return process_tree(self.process.pid)


def free_port() -> int:
    """A port of the loopback address that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Site:
    """The directories and processes of one soak."""

    def __init__(self, directory: Path, seed: int, rate: int) -> None:
        """``rate`` in messages a second."""
        self.directory, self._seed, self._rate = directory, seed, rate
        self.store, self.kept = directory / "store", directory / "kept"
        self.table, self.plain = directory / "table", directory / "plain"
        self._said = directory / "said"
        write_settings(self.store)
        self.kept.mkdir()
        self._said.mkdir()
        self.disk = SmallDisk(directory / "disk", DISK_BYTES)
        self.inside = self.disk.path / "output"
        self.output = self.disk.mount_point / "output"
        self.rng = random.Random(f"faults {seed}")
        self.run: Started | None = None
        self._appender: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self.consumer = Consumer(lambda: self._port, seed)
        self.orphans: list[psutil.Process] = []
        self.runs = 0

    def append(self) -> None:
        """Start the appender, or start it again."""
        command = [*module_command("tests.soak.appender"), str(self.store), str(self._seed)]
        self._appender = subprocess.Popen([*command, str(self._rate)], cwd=ROOT)

    def kill_appender(self) -> None:
        """kill -9; what it was writing is torn."""
        assert self._appender is not None
        if self._appender.poll() is not None:
            raise SoakError("the appender has ended by itself")
        self._appender.kill()
        self._appender.wait()

    def watermark(self) -> Watermark | None:
        """The output's."""
        return read_watermark(self.inside / STATE_DIRECTORY)

    @property
    def position(self) -> int:
        """The watermark's physical offset."""
        found = self.watermark()
        return found.end_offset if found else 0

    @property
    def log_start(self) -> int:
        """Where the log begins now."""
        return min(int(path.name) for path in (self.store / "commitlog").iterdir())

    def arguments(self, *more: object) -> list[str]:
        """A run of this output."""
        return [
            *REPUT, "run", str(self.store), "--output", str(self.output), "--retention",
            "--delta", str(self.table), "--delta-interval", "3s", "--delta-store-id", STORE_ID,
            *map(str, more),
        ]  # fmt: skip

    def start(self, *more: object, port: int | None = None) -> Started:
        """Start a run that serves; it becomes the one that is watched."""
        self.runs += 1
        port = self._port if port is None else port
        errors = self._said / f"{self.runs:05d}"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                self.disk.command(*self.arguments("--serve", f"127.0.0.1:{port}", *more)),
                stdout=subprocess.DEVNULL, stderr=file,
            )  # fmt: skip
        self.run = Started(process, errors, port, self.position)
        self._port = port
        return self.run

    def serve_at(self, port: int) -> None:
        """The consumer's next connection."""
        self._port = port

    def names(self) -> set[Path]:
        """The derived files of the output."""
        return {path for tree in TREES for path in (self.inside / tree).rglob("*")}

    def wait_until(self, is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition of other processes."""
        deadline = time.monotonic() + seconds
        while not is_true():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def wait_for_progress(self, seconds: float) -> bool:
        """Wait until the run has dispatched something, or has ended; whether it has."""
        run = self.run
        assert run is not None
        self.wait_until(
            lambda: self.position > run.position or run.process.poll() is not None, seconds
        )
        return self.position > run.position

    def end_run(self, how: Callable[[Started], None]) -> int:
        """End the run as ``how`` does, and wait; its exit code."""
        run = self.run
        assert run is not None
        tree = run.tree()
        run.may_end = True
        how(run)
        try:
            code = run.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise SoakError(f"a run did not end in {END_SECONDS:.0f} s:\n{run.said}") from None
        self.check_said(run, code)
        self.orphans += tree
        return code

    def stop(self) -> int:
        """SIGTERM."""
        return self.end_run(lambda run: run.process.send_signal(signal.SIGTERM))

    def kill(self) -> None:
        """kill -9 of the whole tree."""
        self.end_run(lambda run: kill_tree(run.process.pid))

    def check_said(self, run: Started, code: int) -> None:
        """A run that was not killed ends with 0, or with 1 and one line."""
        said = run.said
        lines = [line for line in said.splitlines() if line.startswith("reput: error: ")]
        if code < 0:
            return
        if code not in (0, 1) or len(lines) != code or "Traceback" in said:
            raise SoakError(f"a run ended with {code}:\n{said[-4000:]}")

    def check_orphans(self) -> None:
        """Assert that no process of an ended run is left."""
        alive = not_ended(self.orphans, END_SECONDS)
        self.orphans = []
        if alive:
            names = [(process.pid, process.name(), process.status()) for process in alive]
            raise SoakError(f"processes outlive their run: {names}")

    def command(self, *arguments: object, timeout: float = 3600) -> tuple[int, str, str]:
        """Run a command to its end; exit code, stdout and stderr."""
        done = subprocess.run(
            self.disk.command(*REPUT, *arguments), capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        if "Traceback" in done.stderr:
            raise SoakError(f"{arguments} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        return done.returncode, done.stdout, done.stderr

    def table_position(self) -> int:
        """Everything of the log before it is in the Delta table."""
        target = DeltaTarget(str(self.table), store_id=STORE_ID)
        return target.open(STORE_ID, read_store_settings(self.store)).position() or 0

    def retain(self) -> int:
        """The broker removes files of its log that everybody has read; how many."""
        needed = min(self.position, self.table_position(), self.consumer.safe_offset)
        last = needed - needed % FILE_SIZE - KEPT_FILES * FILE_SIZE
        files = sorted((self.store / "commitlog").iterdir())
        gone = [path for path in files if int(path.name) < last]
        for path in gone:
            path.rename(self.kept / path.name)
        return len(gone)

    def whole_store(self) -> Path:
        """The store with every file that its log has ever had."""
        whole = self.directory / "whole"
        write_settings(whole)
        for directory in (self.kept, self.store / "commitlog"):
            for path in directory.iterdir():
                (whole / "commitlog" / path.name).hardlink_to(path)
        return whole

    def log_bytes(self, offset: int, size: int) -> bytes:
        """Bytes of the log, wherever their file is now."""
        start = offset - offset % FILE_SIZE
        for directory in (self.store / "commitlog", self.kept):
            path = directory / offset_to_file_name(start)
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset - start)
                    return file.read(size)
        return b""

    def keep_output(self) -> None:
        """Copy the output from its disk, which goes with the soak, for whoever looks why."""
        shutil.copytree(self.inside, self.directory / "output", dirs_exist_ok=True)

    def close(self) -> None:
        """End all processes."""
        if self.run is not None:
            kill_tree(self.run.process.pid)
            self.run.process.wait()
        if self._appender is not None:
            self._appender.kill()
            self._appender.wait()
        for process in self.orphans:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.disk.close()
        shutil.rmtree(self.directory / "disk", ignore_errors=True)
