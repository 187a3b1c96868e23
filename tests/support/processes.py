"""Children of a test: forked, so that they start in a state that the test has made."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from reput.store import fsops

CHILD_FAILED = 70
POLL_SECONDS = 0.01


def module_command(name: str) -> list[str]:
    """A command that runs a module of the tests, in the tree's root: Spark's sessions tell Python
    not to look in the current directory."""
    return ["env", "-u", "PYTHONSAFEPATH", sys.executable, "-m", name]


def bytes_read() -> int:
    """How many bytes this process has read from files so far, as the kernel counts."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("rchar:") + 1])


def open_paths(below: Path, pid: int | None = None) -> list[Path]:
    """Where the descriptors of a process, by default this one, lead below a directory, to removed
    files too; others come and go with Spark's threads."""
    found = list[Path]()
    for path in Path(f"/proc/{pid or 'self'}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(path.readlink())
    return [path for path in found if path.is_relative_to(below)]


def open_files(below: Path, pid: int | None = None) -> int:
    """How many descriptors of a process lead below a directory."""
    return len(open_paths(below, pid))


def process_tree(pid: int) -> list[psutil.Process]:
    """A process, first, and all below it; none once it has ended."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def name_of(process: psutil.Process) -> str:
    """The name of its program; empty once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def became(is_true: Callable[[], object], seconds: float, poll: float = POLL_SECONDS) -> bool:
    """Look until a condition of other processes or threads holds; whether it did in time."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True


def not_ended(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for processes to end, and return those that did not.

    psutil's own ``wait_procs`` fails where one ends just then: Linux 6.18 says ENOENT, not ESRCH.
    """
    alive = list(processes)
    became(lambda: not any(map(_lives, alive)), seconds)
    return [process for process in alive if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def fork(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; return its process id.

    A child that raises shows its traceback and ends with CHILD_FAILED.
    """
    pid = os.fork()
    if pid == 0:
        code = CHILD_FAILED
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return pid


def wait_status_of(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])


def is_killed_at(ordinal: int, work: Callable[[], object], failpoints: str = "") -> bool:
    """Run ``work`` in a child that is killed with SIGKILL before its operation ``ordinal``.

    Returns False where it ended before, with success. ``failpoints`` are further points, each
    followed by a comma.
    """

    def child() -> None:
        fsops._failpoints = fsops._Failpoints(f"{failpoints}*:{ordinal}=kill")
        work()

    code = wait_status_of(child)
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"child ended with {code} at operation {ordinal}")
    return code != 0


@contextmanager
def holder(take: Callable[[], object]) -> Iterator[int]:
    """A forked child that has done ``take`` and keeps what it got; its process id."""
    ready_read, ready_write = os.pipe()
    stop_read, stop_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(stop_write)
            kept = take()
            os.write(ready_write, b"1")
            os.read(stop_read, 1)
            del kept
        finally:
            os._exit(0)
    os.close(ready_write)
    os.close(stop_read)
    try:
        assert os.read(ready_read, 1) == b"1"
        yield pid
    finally:
        os.close(stop_write)
        os.waitpid(pid, 0)
        os.close(ready_read)
