"""Short commands of clients, run one after another in one JVM for each release.

Why: starting a JVM, and loading and compiling what a client uses, is most of the cost of such a
command, and a test run has dozens of them.

Invariants: a JVM ends with the test run, at the end of its stdin. A JVM whose command failed is not
used again.

Not done here: commands that a test kills or runs beside others (`rocketmq.start_send`), and those
that open a store, since RocketMQ's threads would go on in its files.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from typing import IO, Any, cast

from tests.interop.harnessjvm import current_release, last_words, read_lines, spawn
from tests.interop.maven import HarnessError


class Session:
    """A JVM that runs subcommands of `Harness`."""

    def __init__(self) -> None:
        self._process, self._home = spawn(["session"], stdin=subprocess.PIPE)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(
            target=read_lines, args=(self._process.stdout, self._lines), daemon=True
        ).start()

    def ask(self, arguments: list[str], timeout: float) -> dict[str, Any]:
        """Return the one object that a subcommand prints. Raises HarnessError if it fails."""
        stdin = cast(IO[str], self._process.stdin)
        stdin.write("\t".join(arguments) + "\n")
        stdin.flush()
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._error(arguments, f"did not answer within {timeout:.0f} s") from None
        if line is None:
            raise self._error(arguments, "ended")
        found = cast(dict[str, Any], json.loads(line))
        if "failed" in found:
            raise self._error(arguments, f"failed\n{found['failed']}")
        return found

    def _error(self, arguments: list[str], problem: str) -> HarnessError:
        self._process.kill()
        self._process.wait()
        return HarnessError(f"{arguments[0]} {problem}\n{last_words(self._home)}")


_sessions: dict[str, Session] = {}
_lock = threading.Lock()


def ask(arguments: list[str], timeout: float) -> dict[str, Any]:
    """Have the JVM of the current release run a subcommand; it is started if need be."""
    release = current_release()
    with _lock:
        session = _sessions.pop(release, None) or Session()
        found = session.ask(arguments, timeout)
        _sessions[release] = session
    return found
