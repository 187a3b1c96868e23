"""Terminals of 60 and 80 columns show everything: nothing cut or squeezed, no collisions."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main
from rich.cells import cell_len
from typer.testing import CliRunner

from reput.cli import app
from tests.support.cli import Call, json_object, on_terminal, reput_on_terminal

STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
LOG_BESIDE_BAR = """
import logging
from reput.cli import render
render.set_up(as_json=False)
with render.ProgressDisplay() as display:
    display.update(1, 3, "1 of 3", {})
    render._stderr.bar.refresh()
    logger = logging.getLogger("reput")
    logger.info("ended", extra={"fields": {"start": 0}})
    logger.setLevel("DEBUG")
    logger.debug("batch", extra={"fields": {"start": 8}})
    logger.info("a line of the log")
    logger.error("batch failed", extra={"fields": {"cause": "disk full", "start": 0}})
    display.update(2, 3, "2 of 3", {})
"""


def lines_on(columns: int, *arguments: object) -> list[str]:
    """The text that a terminal shows, without its styles."""
    shown = STYLE.sub("", reput_on_terminal(*arguments, term="xterm", columns=columns))
    return [line.rstrip() for line in shown.splitlines()]


def all_commands() -> dict[str, object]:
    """Every command by the words that call it."""
    found = {}
    groups = {"": typer.main.get_command(app)}
    while groups:
        words, group = groups.popitem()
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            called = f"{words} {name}".strip()
            (groups if hasattr(command, "commands") else found)[called] = command
    return found


def test_a_command_is_listed_as_its_own_help_begins() -> None:
    """The list has a summary of its own, since it imports no command."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) >= 19
    for name, command in commands.items():
        own = command._imported().help.partition("\n\n")[0]
        assert command.help == " ".join(own.split()), name


@pytest.mark.parametrize("words", sorted(all_commands()))
def test_help_shows_every_option_whole(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns; a flag is said to take no value, and -h is --help."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    done = CliRunner().invoke(app, [*words.split(), "-h"])
    assert done.exit_code == 0, done.output
    assert "<bool>" not in done.output
    assert "\u2026" not in done.output
    for parameter in all_commands()[words].params:  # type: ignore[attr-defined]
        for name in (*parameter.opts, *parameter.secondary_opts):
            if name.startswith("-"):
                assert re.search(rf"(?<![\w-]){name}(?![\w-])", done.output), name


def test_short_options_mean_the_same_everywhere() -> None:
    """-o is --output wherever there is one."""
    meanings: dict[str, set[str]] = {}
    for command in all_commands().values():
        for parameter in command.params:  # type: ignore[attr-defined]
            for name in parameter.opts:
                if re.fullmatch("-[a-z]", name):
                    meanings.setdefault(name, set()).add(parameter.name)
                    assert parameter.opts[0].startswith("--")
            if parameter.name in ("output", "as_json", "topic") and parameter.opts[0][0] == "-":
                assert len(parameter.opts) == 2, (command, parameter.name)
    assert meanings["-o"] == {"output"}
    assert meanings["-t"] == {"topic"}
    assert meanings["-j"] == {"as_json"}


@pytest.mark.parametrize("columns", [60, 80])
def test_rows_that_are_too_wide_are_shown_field_by_field(
    golden: Callable[[str], Path], columns: int
) -> None:
    """All columns of a message, one a line, none broken into characters."""
    pytest.importorskip("duckdb")
    shown = lines_on(columns, "sql", golden("plain"), "select * from messages limit 2")
    assert max(map(cell_len, shown)) <= columns
    assert sum(bool(re.match(r"physicalOffset +\d+$", line)) for line in shown) == 2
    assert any(re.match(r"storeTimestamp +\d{4}-\d\d-\d\dT[\d:.]+Z$", line) for line in shown)


def test_tail_gives_a_body_the_width_of_the_terminal(golden: Callable[[str], Path]) -> None:
    """60 columns; what is too long is cut, with how much."""
    shown = lines_on(60, "tail", golden("mixed"), "订单-主题", "--count", 4, "--body", "hex")
    assert max(map(cell_len, shown)) <= 60
    bodies = [line.strip() for line in shown if re.fullmatch(r"  [0-9a-f]+", line)]
    assert max(map(len, bodies)) == 58
    assert any("more characters)" in line for line in shown)
    assert sum("  queue " in line for line in shown) == 4


@pytest.mark.parametrize("columns", [37, 60, 80])
def test_no_escape_is_broken_by_the_end_of_a_line(
    golden: Callable[[str], Path], columns: int, call: Call
) -> None:
    """Bodies of random bytes: each line by itself is escapes and printable characters, and all of
    them together are the body."""
    store = golden("plain")
    shown = lines_on(columns, "get", store, "Topic_0", 0, 3)
    begin = next(number for number, line in enumerate(shown) if line.startswith("body "))
    room = re.match(r"body +", shown[begin])
    assert room is not None
    end = next(n for n in range(begin, len(shown)) if "more characters)" in shown[n])
    lines = [line[room.end() :] for line in shown[begin:end]]
    for line in lines:
        assert re.search(r"\\(x.?|u.{0,3})?$", line) is None, line
    body = json_object(call("get", store, "Topic_0", 0, 3, "--json"))["body"]
    wanted = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in body)
    assert wanted.replace(" ", "").startswith("".join(lines).replace(" ", ""))


def test_watch_leaves_nothing_in_the_history_of_a_terminal(golden: Callable[[str], Path]) -> None:
    """Each screen replaces the last one: nothing that scrolls, as erasing the whole screen does."""
    script = (
        "import os, signal, sys; from reput.cli import status; from reput.__main__ import main; "
        "status.WATCH_SECONDS = 0; read = status.read_status; calls = []\n"
        "def counted(*a):\n"
        "    calls.append(a)\n"
        "    if len(calls) == 3: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return read(*a)\n"
        "status.read_status = counted\n"
        "sys.argv = ['reput', 'status', sys.argv[1], '--watch']; main()"
    )
    sent = on_terminal([sys.executable, "-c", script, str(golden("plain"))], "xterm", 80)
    screens = sent.split("\x1b[H\x1b[J")
    assert len(screens) == 4
    assert screens[0] == ""
    assert "\x1b[2J" not in sent
    for screen in screens[1:]:
        assert screen.count("commitlog ") == 1
        assert "Topic_5" in screen


def test_an_answer_larger_than_a_table_is_shown_in_several(golden: Callable[[str], Path]) -> None:
    """Rows are printed as they come: 3,170 of them, in portions with their heads."""
    pytest.importorskip("duckdb")
    shown = lines_on(80, "sql", golden("plain"), "select physicalOffset from messages")
    assert sum(line.isdigit() for line in shown) == 3170
    assert shown.count("physicalOffset") == 4


def test_verify_shows_a_difference_by_names(golden: Callable[[str], Path]) -> None:
    """The file in one piece, both sides with the names of their fields; no empty frame. Before that
    a bar has shown the progress."""
    store = golden("broker")
    lines = lines_on(80, "verify", store)
    shown_again = lines.index("\x1b[?25h")
    assert any("verifying" in line for line in lines[:shown_again])
    sound = lines[shown_again + 1 :]
    assert len([line for line in sound if line]) <= 2
    assert "no differences" in " ".join(sound)
    victim = next((store / "consumequeue" / "Orders" / "0").iterdir())
    with victim.open("r+b") as file:
        file.seek(45)
        file.write(b"\x01")
    shown = lines_on(60, "verify", store)
    assert any(f"consumequeue/Orders/0/{victim.name}" in line for line in shown)
    assert any(re.match(r"  log says  offset 2426, size 264, tags_code \d+$", s) for s in shown)
    assert "1 difference to repair" in " ".join(shown)
    assert any(re.match(r"  found     offset 67962, size 264, tags_code \d+$", s) for s in shown)


def test_log_lines_stand_above_the_bar() -> None:
    """A line of the log is never written beside the bar, and a batch, which moves the bar, has none
    unless it fails."""
    sent = on_terminal([sys.executable, "-c", LOG_BESIDE_BAR], "xterm", 80)
    assert "ended:" not in sent
    assert re.search("debug +batch: start=8", CONTROL.sub("", sent))
    assert 'batch failed: cause="disk full" start=0' in CONTROL.sub("", sent)
    line = next(part for part in re.split(r"[\r\n]", sent) if "a line of the log" in part)
    assert re.fullmatch(r"[-0-9T:.]+Z info +a line of the log", CONTROL.sub("", line))


def test_inspect_names_what_numbers_mean(golden: Callable[[str], Path], call: Call) -> None:
    """Times, flags, absences; an offset stays a number that can be given back."""
    shown = call("inspect", "record", golden("mixed"), 0).stdout
    assert re.search(r"^store timestamp +2026-\d\d-\d\dT[\d:.]+Z$", shown, re.M)
    assert re.search(r"^sys flag +513 compressed zstd$", shown, re.M)
    assert re.search(r"^prepared transaction offset +none$", shown, re.M)
    assert re.search(r"^body crc is right +yes$", shown, re.M)
    assert re.search(r"^property UNIQ_KEY +[0-9A-F]{32,}$", shown, re.M)
    assert "{" not in shown
