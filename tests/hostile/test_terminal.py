"""Text from the log on a terminal, in JSON and in errors: case 24 of the threat model."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from reput.cli.render import ProgressDisplay
from reput.streaming.progress import Progress
from tests.hostile.stores import SOUND, log_with
from tests.support.cli import Call
from tests.support.small_store import SmallStore

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2066\x7f\r\b"
BAD_TOPIC = f"x{ESCAPES}"
ODD_TOPIC = "a\u202eb\u200bc"
"""A plain path component, so that it is dispatched."""
VALUE = f"k{ESCAPES}[red]x[/red]"
FIELDS = f"TAGS\x01{VALUE}\x02KEYS\x01{VALUE}\x02UNIQ_KEY\x01u{ESCAPES}\x02a{ESCAPES}\x01b\x02"


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    plain = log_with(
        {"topic": BAD_TOPIC.encode(), "properties": FIELDS.encode(), "body": VALUE.encode()},
        {"topic": ODD_TOPIC.encode(), "properties": FIELDS.encode(), "body": VALUE.encode()},
        {**SOUND, "queue_offset": 1 << 62},
    )
    made = SmallStore(tmp_path, plain)
    made.output.start()
    return made


def harmless(text: str) -> bool:
    """Whether nothing in it acts on a terminal but line feeds."""
    return all(character.isprintable() for character in text.replace("\n", ""))


def commands(store: SmallStore, offset: int) -> list[list[object]]:
    """Commands that show or repeat what is in the log."""
    root, output = store.output.store, ["--output", store.output.root]
    return [
        ["status", root, *output],
        ["verify", root, *output],
        ["tail", root, ODD_TOPIC, *output],
        ["get", root, ODD_TOPIC, 0, 0, *output],
        ["query", root, ODD_TOPIC, "--key", VALUE.split(" ", maxsplit=1)[0], *output],
        ["inspect", "record", root, offset],
        ["inspect", "queue", root, ODD_TOPIC, 0, *output],
        ["inspect", "checkpoint", store.output.root],
        ["tail", root, BAD_TOPIC, *output],
        ["get", root, BAD_TOPIC, 0, 0, *output],
        ["status", root, *output, "--topic", BAD_TOPIC],
        ["search-time", root, BAD_TOPIC, 0, "2020-01-01", *output],
        ["lag", root, BAD_TOPIC, *output],
        ["expire", root, *output],
    ]


def test_case_24_nothing_printed_acts_on_a_terminal(
    store: SmallStore, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, lists, errors and JSON; what a message holds is there, escaped."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # lists of messages are JSON elsewhere
    seen = ""
    for command in commands(store, store.plain.spans[1][0]):
        for as_json in ([], ["--json"]):
            done = call(*command, *as_json)
            assert harmless(done.stdout + done.stderr), command
            assert done.returncode < 2 or BAD_TOPIC in command, (command, done.stderr)
            seen += done.stdout
            lines = done.stdout.splitlines() if as_json else []
            assert all(isinstance(json.loads(line), dict | list) for line in lines), command
    assert "\\x1b[2J" in seen
    assert "\\u001b[2J" in seen
    assert "[red]x[/red]" in seen


def test_case_24_log_lines_and_progress(
    store: SmallStore, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines on stderr repeat text harmlessly."""
    call("status", store.output.store, "--output", store.output.root)
    logging.getLogger("reput").warning("topic %s", BAD_TOPIC)
    logging.getLogger("reput").info("a\nb %s", ODD_TOPIC)
    display = ProgressDisplay()
    display._due = 0.0
    display(Progress(start_offset=0, end_offset=1, log_end=2))
    shown = capsys.readouterr().err
    assert "\\x1b[2J" in shown
    assert "a\\nb" in shown
    assert harmless(shown)


def test_case_24_the_ledger_is_ascii(store: SmallStore) -> None:
    """The file may be looked at with anything."""
    text = (store.output.state / "quarantine.jsonl").read_text("ascii")
    assert harmless(text)
    assert len(store.ledger()) == 2
