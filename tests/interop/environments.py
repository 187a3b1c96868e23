"""Environments of Python for programs that cannot share ours, and jars, each made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.cli import ROOT
from tests.support.jdk import require_tools

TIMEOUT_SECONDS = 900.0
TARGET = ROOT / "build" / "environments"
"""Made folders; git ignores it."""


def python_with(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with these packages. Skips the calling test where they
    cannot be had; on CI that is a failure instead."""
    place = TARGET / name
    stamp, wanted = place / "packages.txt", "\n".join(packages)
    TARGET.mkdir(parents=True, exist_ok=True)
    with FileLock(TARGET / f"{name}.lock", timeout=TIMEOUT_SECONDS):
        if not stamp.is_file() or stamp.read_text() != wanted:
            _made([sys.executable, "-m", "venv", "--clear", str(place)])
            _made(
                [str(place / "bin" / "python"), "-m", "pip", "install", "-q",
                 "--disable-pip-version-check", *packages]
            )  # fmt: skip
            stamp.write_text(wanted)
    return place / "bin" / "python"


def jar(artifact: str) -> Path:
    """The file of an artifact GROUP:NAME:VERSION. Skips as ``python_with``."""
    require_tools(("java", "mvn"), "Spark with Iceberg")
    _, name, version = artifact.split(":")
    path = TARGET / "jars" / f"{name}-{version}.jar"
    TARGET.mkdir(parents=True, exist_ok=True)
    with FileLock(TARGET / "jars.lock", timeout=TIMEOUT_SECONDS):
        if not path.is_file():
            _made(
                ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}",
                 f"-DoutputDirectory={path.parent}"]
            )  # fmt: skip
    return path


def _made(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=TIMEOUT_SECONDS, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        reason = f"cannot be made here: {' '.join(command)}: {done.stdout[-2000:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
