"""Spark 4.2, on which runs are plain: tests of sources, of checkpoints and of runs hold there."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.interop.environments import python_with
from tests.support.cli import ROOT

SPARK = "pyspark==4.2.1"
TESTS = (
    "tests/checkpoints/test_spark_versions.py",
    "tests/sources",
    "tests/streaming/test_golden.py",
    "tests/streaming/test_following.py",
    "tests/streaming/test_tail.py",
)
QUIET = "tests/sources/test_hangup.py"
"""Spark 4.2 prints a traceback where it leaves a worker: keeping it quiet takes parts of 4.3."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sources_and_runs_on_spark_4_2() -> None:
    """In an environment of its own, with all else as we pin it."""
    pinned = (ROOT / "constraints.txt").read_text().split()
    others = [one for one in pinned if not one.startswith(("pyspark==", "py4j=="))]
    python = python_with("spark42", [*others, SPARK])
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *TESTS,
         "--ignore", QUIET],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
