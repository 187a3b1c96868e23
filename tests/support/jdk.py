"""The real JDK as a judge: small programs run with ``java Name.java``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def require_java() -> None:
    """Skip where java is missing; on CI it must not be."""
    if shutil.which("java") is None and os.environ.get("CI") != "true":
        pytest.skip("java is not installed")


def java_command(directory: Path, name: str, program: str, *arguments: str) -> list[str]:
    """The command that runs ``program``, whose class is ``name``."""
    require_java()
    source = directory / f"{name}.java"
    source.write_text(program)
    return ["java", *_FAST_START, str(source), *arguments]


def run_java(directory: Path, name: str, program: str, *arguments: str) -> None:
    """Run a program to its end; raises CalledProcessError where it fails."""
    subprocess.run(java_command(directory, name, program, *arguments), check=True)
