"""An empty word in a command line, as of a shell's variable that nobody has set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import typer

from reput.cli import app
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call


def _paths() -> Iterator[tuple[str, ...]]:
    """Each option and argument of each command that is a path, empty, in a command line of its
    own."""
    pending = [((), typer.main.get_command(app))]
    while pending:
        words, command = pending.pop()
        for name, inner in getattr(command, "commands", {}).items():
            pending.append(((*words, name), inner))
        for parameter in command.params:
            taken = parameter.type_descriptor.annotation
            if Path in (taken, *get_args(taken)):
                is_option = parameter.param_type_name == "option"
                yield (*words, *([parameter.opts[0]] if is_option else []), "")


PATHS = sorted(_paths())


def test_every_command_with_a_store_is_among_them() -> None:
    """The list is read from the commands; a change of typer could leave it empty."""
    assert len(PATHS) > 60
    assert {("run", ""), ("run", "--output", ""), ("groups", "reset", "")} <= set(PATHS)


# a server that took an empty path would go on for ever
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "words", [*PATHS, ("serve", "store", ""), ("serve", "", "store")], ids=" ".join
)
def test_a_path_is_never_empty(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """For Python it is the current directory, into which a rebuild would write."""
    monkeypatch.chdir(tmp_path)
    assert_one_line(call(*words), 2, "it is empty; give a path")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--kafka", ["--kafka", ""]),
        ("--kafka-topics", ["--kafka", "h:1", "--kafka-topics", ""]),
        ("--kafka-topics", ["--kafka", "h:1", "--kafka-topics", "A,,B"]),
        ("--kafka-arrivals", ["--kafka", "h:1", "--kafka-arrivals", ""]),
        ("--delta", ["--delta", ""]),
    ],
)
def test_a_target_is_never_empty(call: Call, tmp_path: Path, option: str, words: list[str]) -> None:
    """A run without it would go on, or one with all topics of the store."""
    assert_one_line(call("run", tmp_path, "--once", *words), 2, f"{option} ", "empty")
