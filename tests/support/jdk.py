"""The real JDK as a judge: small programs run with ``java Name.java``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def require_java() -> None:
    """Skip the calling test where java is missing; on CI that is a failure instead."""
    require_tools(("java",), "small programs of Java")


def require_tools(tools: Sequence[str], purpose: str) -> None:
    """Skip the calling test where one of the tools is missing; on CI that is a failure instead."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    reason = f"needs {' and '.join(missing)} on PATH to run {purpose}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def java_command(directory: Path, name: str, program: str, *arguments: str) -> list[str]:
    """The command that runs ``program``, whose class is ``name``."""
    require_java()
    source = directory / f"{name}.java"
    source.write_text(program)
    return ["java", *_FAST_START, str(source), *arguments]


def run_java(directory: Path, name: str, program: str, *arguments: str) -> None:
    """Run a program to its end; raises CalledProcessError where it fails."""
    subprocess.run(java_command(directory, name, program, *arguments), check=True)
