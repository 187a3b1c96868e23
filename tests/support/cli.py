"""The command line as a user calls it: a process of its own."""

from __future__ import annotations

import json
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
