"""Whole runs of ``reput run`` with Spark, one of whose processes is killed, or fails in its calls.

A bench has one of RocketMQ's stores and an output. Runs follow one another on it until one ends
undisturbed; then queues are RocketMQ's own, ``verify`` finds nothing, and nothing is in quarantine.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from reput.store.state.built import settings_of
from reput.streaming.spark.jvm import find_java
from reput.upkeep.verify.run import verify
from tests.support.childruns import PARTS, ChildRun, check_gone, check_whole
from tests.support.cli import REPUT, kill_tree, reput_json
from tests.support.golden import unpack_golden
from tests.support.processes import became
from tests.torture.cases import Case, Kind

NAME = "mixed"
"""Transactions, delayed messages and several topics."""
TRIGGER = "100k"
"""A batch of this size: a run has about twenty."""
LONGEST_START_SECONDS = 3.0
POLL_SECONDS = 0.002
CALLS = {
    "openat": ("EIO", "EMFILE", "ENOSPC", "EACCES"),
    "write,pwrite64": ("EIO", "ENOSPC", "EDQUOT"),
    "read,pread64": ("EIO",),
    "rename,renameat,renameat2": ("EIO", "ENOSPC", "EACCES"),
    "mkdir,mkdirat": ("EIO", "ENOSPC"),
    "unlink,unlinkat,rmdir": ("EIO", "EACCES"),
    "fsync,fdatasync,ftruncate": ("EIO",),
    "newfstatat,stat,lstat": ("EIO",),
    "mmap": ("ENOMEM",),
    "clone,clone3": ("EAGAIN",),
    "connect,accept,accept4": ("ECONNABORTED",),
    "sendto,recvfrom": ("ECONNRESET",),
}
"""Calls, and the errors that they fail with."""
LATEST = 200
"""The last call of a thread that may fail."""
SCRIPT = """#!/bin/sh
exec {strace} -D -f --seccomp-bpf -qq -o {log} -e trace={calls} \\
    -e inject={calls}:error={error}:when={when} {java} "$@"
"""


class SparkBench:
    """A bench is one store without an output."""

    def __init__(self, case: Case) -> None:
        self.directory = case.emptied()
        self.store, self.output = unpack_golden(NAME, self.directory), self.directory / "output"
        self.rng = random.Random(f"{case.seed} {case.number}")

    def start(self, environment: Mapping[str, str] | None = None) -> ChildRun:
        """Start a run."""
        command = [
            *REPUT, "run", self.store, "--output", self.output, "--once", "--index",
            "--max-bytes-per-trigger", TRIGGER,
        ]  # fmt: skip
        return ChildRun(self.directory / "said", command, self.output, environment=environment)

    def end(self, run: ChildRun, tree: list[psutil.Process]) -> str:
        """Wait for its end, and that of the processes of ``tree``, and say how it ended: by itself,
        with one line of ours, or killed."""
        try:
            code = run.wait()
            check_gone(tree)
        finally:
            for process in tree:
                kill_tree(process.pid)
        return "killed" if code < 0 else "ended with a line" if code else "went on"

    def check(self) -> None:
        """Let an undisturbed run do what is left, and compare."""
        done = reput_json("run", self.store, "--output", self.output, "--once", "--index")
        assert done["quarantined_bytes"] == 0
        check_whole(self.output, self.store)
        report = verify(settings_of(self.output, read_store_settings(self.store)), self.output)
        assert report.differences == ()
        assert report.index_entries > 0


def _kill_processes(case: Case) -> Counter[str]:
    """One to four kills, then a run that nobody disturbs."""
    bench = SparkBench(case)
    outcomes = Counter(_kill(bench) for _ in range(bench.rng.randint(1, 4)))
    bench.check()
    return outcomes


def _kill(bench: SparkBench) -> str:
    rng, run = bench.rng, bench.start()
    part = rng.choice(PARTS)
    if rng.random() < 0.3:
        time.sleep(rng.random() * LONGEST_START_SECONDS)  # the moment is random, not an event
    else:
        goal = run.moves() + rng.randint(1, 12)
        became(lambda: run.moves() >= goal or not run.is_alive, 600, POLL_SECONDS)
        time.sleep(rng.random() * 0.02)
    tree = run.tree()
    is_met = run.kill_part(part, rng)
    outcome = bench.end(run, tree)
    return f"{part}: {outcome if is_met else 'not there'}"


def _fail_calls(case: Case) -> str:
    """One run in which calls fail, then one that nobody disturbs."""
    bench = SparkBench(case)
    rng = bench.rng
    calls = rng.choice(list(CALLS))
    when = int(LATEST ** rng.random())
    home, log = bench.directory / "java", bench.directory / "calls"
    _lay_java(home, log, calls, rng.choice(CALLS[calls]), when)
    run = bench.start({"JAVA_HOME": str(home)})
    outcome = bench.end(run, run.tree())
    is_met = "(INJECTED)" in log.read_text(errors="replace")
    bench.check()
    return f"{calls}: {outcome}" if is_met else f"{calls}: not reached"


def _lay_java(home: Path, log: Path, calls: str, error: str, when: int) -> None:
    """Make a JAVA_HOME whose java is the real one below strace."""
    strace = shutil.which("strace")
    if strace is None:
        raise UsageError("failing calls of the JVM need strace: apt-get install strace")
    java = find_java().resolve()
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    (home / "lib").symlink_to(java.parent.parent / "lib")
    script.write_text(
        SCRIPT.format(strace=strace, log=log, calls=calls, error=error, when=when, java=java)
    )
    script.chmod(0o755)


SPARK_KILLS = Kind("spark kills", _kill_processes, 120)
"""kill -9 of a run's processes, up to four times: the tree, the driver, Spark's JVM, or a Python
worker, at any moment of a start or after some batch. The JVM and the workers of a killed driver end
by themselves; the driver of a killed JVM ends with one line."""
JVM_CALLS = Kind("jvm calls", _fail_calls, 300)
"""System calls of Spark's JVM that fail, by strace: files, names, syncs, memory, threads, sockets.
In each thread of the JVM, one call of a kind fails, the first or a later one. The run goes on or
ends with one line of ours; it never hangs, and leaves nothing of its own running."""
