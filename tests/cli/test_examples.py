"""The examples that every command's help ends with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from reput.cli import app
from reput.cli.examples import EXAMPLES
from tests.support.cli import Call


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    for name in names:
        yield from _commands(command.get_command(None, name), (*words, name))
    if not names:
        yield words


def test_every_command_has_examples() -> None:
    """No command lacks them, and none are of a command that is gone."""
    root = typer.main.get_command(app)
    assert sorted(EXAMPLES) == sorted(" ".join(words) for words in _commands(root))


@pytest.mark.parametrize(
    ("name", "example"), [(name, one) for name, all_of in EXAMPLES.items() for one in all_of]
)
def test_an_example_is_accepted(name: str, example: str) -> None:
    """The command's own parser takes it, without running it."""
    words = shlex.split(example)
    command: Any = typer.main.get_command(app)
    for word in name.split():
        assert words.pop(0) == word
        command = command.get_command(None, word)
    command.make_context(name, words)


@pytest.mark.parametrize("name", ["run", "groups reset"])
def test_help_shows_the_examples(call: Call, name: str) -> None:
    """They come at the end, also in the help of a command within a group."""
    done = call(*name.split(), "--help")
    text = " ".join(done.stdout.split())
    for example in EXAMPLES[name]:
        assert f"reput {example}" in text


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("group", ["groups", "dlq", "checkpoints"])
def test_help_of_a_group_names_its_commands(call: Call, group: str, option: str) -> None:
    """It is not the help of the command that may be left out."""
    done = call(group, option)
    assert done.returncode == 0
    names = {words[1] for words in map(str.split, EXAMPLES) if words[0] == group}
    assert len(names) > 1
    assert {line.split()[1] for line in done.stdout.splitlines() if line[:2] == "│ "} >= names
