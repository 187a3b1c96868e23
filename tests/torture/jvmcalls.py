"""System calls of Spark's JVM that fail, by strace: files, names, syncs, memory, threads, sockets.

In each thread of the JVM, one call of a kind fails, the first or a later one. The run goes on or
ends with one line of ours; it never hangs, and leaves nothing of its own running.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from reput.store.errors import UsageError
from reput.streaming.spark.jvm import find_java
from tests.torture.sparkruns import SparkBench

NAME = "jvm calls"
CASES = 300
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


def run(directory: Path, seed: int, case: int) -> str:
    """One run in which calls fail, then one that nobody disturbs."""
    rng = random.Random(f"{seed} {case}")
    bench = SparkBench(directory)
    calls = rng.choice(list(CALLS))
    when = int(LATEST ** rng.random())
    home, log = bench.directory / "java", bench.directory / "calls"
    _lay_java(home, log, calls, rng.choice(CALLS[calls]), when)
    run = bench.start({"JAVA_HOME": str(home)})
    outcome = run.end(run.tree(), may_be_killed=False)
    met = "(INJECTED)" in log.read_text(errors="replace")
    bench.check()
    return f"{calls}: {outcome}" if met else f"{calls}: not reached"


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
