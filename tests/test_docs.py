"""README.md says what the code does: its generated tables are up to date, its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import typer.main

from docs.generate import README, generated
from reput.cli import app
from tests.support.cli import reput_json


def test_generated_tables_are_up_to_date() -> None:
    """``make docs`` would change nothing."""
    text = README.read_text("utf-8")
    assert generated(text) == text


def test_every_command_that_the_readme_shows_exists() -> None:
    """Sub-commands and flags of each ``reput`` line."""
    root = typer.main.get_command(app)
    shown = re.findall(r"^\.venv/bin/reput ([^#\n]*)", README.read_text("utf-8"), re.M)
    assert len(shown) >= 6
    for line in shown:
        command = root
        words = line.split()
        while hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), line
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_readmes_program_runs(tmp_path: Path) -> None:
    """The Python lines, on a store that the README's own command makes."""
    store = tmp_path / "store"
    reput_json("produce", store, "--count", 100, "--rate", 0, "--commitlog-file-size", "1m")
    found = re.search(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)
    assert found is not None
    assert '"/tmp/mystore"' in found[1]
    program = found[1].replace('"/tmp/mystore"', repr(str(store)))
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False,
        cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Topic_007" in done.stdout
