"""The command line as a user calls it: a process of its own."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

REPUT = [sys.executable, "-m", "reput"]
ROOT = Path(__file__).parent.parent.parent


def reput(*arguments: object, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [*REPUT, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
    )


def reput_json(*arguments: object) -> dict[str, Any]:
    """Run a command with ``--json``; the object on the last line of its output."""
    done = reput(*arguments, "--json")
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if not isinstance(found, dict):
        raise AssertionError(f"no JSON object: {found}")
    return found


def reput_json_lines(*arguments: object) -> list[dict[str, Any]]:
    """Run a command whose output is not a terminal and has an object in each line."""
    done = reput(*arguments)
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


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
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(tree, timeout=10)
