"""README.md says what the code does: its generated tables are up to date, its commands exist."""

from __future__ import annotations

import re

import typer.main

from docs.generate import README, generated
from reput.cli import app


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
