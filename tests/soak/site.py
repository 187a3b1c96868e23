"""Everything that lives during a soak: the appender, the run with its process tree, the consumer.

The output lies on a small disk of its own, a tmpfs in a mount namespace; store and Delta table lie
beside it.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from reput.sinks.delta.table import DeltaTarget
from reput.store.config import read_store_settings
from reput.store.files import offset_to_file_name
from tests.soak.consumer import Consumer
from tests.soak.madelog import FILE_SIZE, write_settings
from tests.support.childruns import ChildRun, check_gone
from tests.support.cli import REPUT
from tests.support.processes import became, module_command
from tests.support.prometheus import free_port
from tests.support.smalldisk import SmallDisk

DISK_BYTES = 512 << 20
KEPT_FILES = 12
"""Files of the log that retention leaves besides those that somebody still needs."""
END_SECONDS = 1200.0
PROGRESS_SECONDS = 3600.0
"""As long as a machine may be busy with what is more urgent."""
STORE_ID = "soak"
TREES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")


class SoakError(AssertionError):
    """A promise is broken."""


class SoakRun(ChildRun):
    """A run that serves at ``port``."""

    def __init__(self, log: Path, command: list[str], output: Path, port: int) -> None:
        super().__init__(log, command, output)
        self.port, self.start = port, self.position()
        self.may_be_killed = True
        self.may_end = False
        """Whether a fault has hit it that may end it."""

    def wait_for_progress(self, seconds: float) -> bool:
        """Wait until it has dispatched something, or has ended; whether it has."""
        became(lambda: self.position() > self.start or not self.is_alive, seconds)
        return self.position() > self.start


class Site:
    """The directories and processes of one soak."""

    def __init__(self, directory: Path, seed: int, rate: int) -> None:
        """``rate`` in messages a second."""
        self.directory, self._seed, self._rate = directory, seed, rate
        self.store, self.kept = directory / "store", directory / "kept"
        self.table, self.plain = directory / "table", directory / "plain"
        self._logs = directory / "said"
        write_settings(self.store)
        self.kept.mkdir()
        self._logs.mkdir()
        self.disk = SmallDisk(directory / "disk", DISK_BYTES)
        self.inside = self.disk.path / "output"
        self.output = self.disk.mount_point / "output"
        self.rng = random.Random(f"faults {seed}")
        self._run: SoakRun | None = None
        self._appender: ChildRun | None = None
        self._port = free_port()
        self.consumer = Consumer(lambda: self._port, seed)
        self.orphans: list[psutil.Process] = []
        self.runs = 0

    @property
    def run(self) -> SoakRun:
        """The run that is watched, the last one mostly."""
        assert self._run is not None
        return self._run

    def append(self) -> None:
        """Start the appender, or start it again."""
        command = [*module_command("tests.soak.appender"), self.store, self._seed, self._rate]
        self._appender = ChildRun(self.directory / "appender", command)

    def kill_appender(self) -> None:
        """kill -9; what it was writing is torn."""
        assert self._appender is not None
        if not self._appender.is_alive:
            raise SoakError(f"the appender has ended by itself: {self._appender.stderr}")
        self._appender.kill()

    @property
    def position(self) -> int:
        """The watermark's physical offset."""
        return self.run.position()

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

    def start(self, *more: object, port: int | None = None) -> SoakRun:
        """Start a run that serves; it becomes the one that is watched."""
        self.runs += 1
        port = self._port if port is None else port
        command = self.disk.command(*self.arguments("--serve", f"127.0.0.1:{port}", *more))
        self.watch(SoakRun(self._logs / f"{self.runs:05d}", command, self.inside, port))
        return self.run

    def watch(self, run: SoakRun) -> None:
        """The run that is watched, and to which the consumer's next connection goes."""
        self._run, self._port = run, run.port

    def names(self) -> set[Path]:
        """The derived files of the output."""
        return {path for tree in TREES for path in (self.inside / tree).rglob("*")}

    def stop(self) -> int:
        """End the run by SIGTERM; its exit code."""
        self.orphans += self.run.tree()
        return self.run.stop(END_SECONDS)

    def kill(self, part: str = "tree") -> bool:
        """kill -9 of a part of the run, and wait for the run's end; whether the part was there."""
        tree = self.run.tree()
        if not self.run.kill_part(part, self.rng):
            return False
        self.run.wait(END_SECONDS)
        self.orphans += tree
        return True

    def check_orphans(self) -> None:
        """Assert that no process of an ended run is left."""
        check_gone(self.orphans, END_SECONDS)
        self.orphans = []

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
        for child in (self._run, self._appender):
            if child is not None:
                child.kill()
        for process in self.orphans:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.disk.close()
        shutil.rmtree(self.directory / "disk", ignore_errors=True)
