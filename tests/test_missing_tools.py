"""Without Maven a test run says what it left out, and on CI it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEST = "tests/interop/test_settings.py"


def run_tests(**environment: str) -> subprocess.CompletedProcess[str]:
    """One file of tests, of which some need Maven, where there is none."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST, "-k", "releases"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        env={**inherited, "PATH": "", **environment},
    )  # fmt: skip


def test_the_last_lines_say_what_did_not_run() -> None:
    """How many tests, and why: here because tools are missing."""
    done = run_tests()
    assert done.returncode == 0, done.stdout
    count, reason, _counts = done.stdout.strip().splitlines()[-3:]
    assert count == "tests that did not run: 1"
    assert reason.startswith("   1  needs java and mvn on PATH to run ")


def test_on_ci_it_fails() -> None:
    """A CI run that leaves tests out must not look green."""
    done = run_tests(CI="true")
    assert done.returncode == 1, done.stdout
    assert "needs java and mvn on PATH to run" in done.stdout


def test_the_ci_script_says_that_it_is_ci(tmp_path: Path) -> None:
    """Every make that it calls sees CI=true."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$1 CI=$CI"\n')
    make.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / ".ci" / "run"], capture_output=True, text=True, check=True, env=environment
    )
    targets = ["test-durability", "lint", "test", "test-extended"]
    assert done.stdout.splitlines() == [f"{target} CI=true" for target in targets]
