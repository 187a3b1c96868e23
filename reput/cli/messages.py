"""Messages on stdout: tables on a terminal, a JSON object a line elsewhere. What a message says is
from strangers: nothing of it acts on a terminal, whichever form it has."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reput.cli import render
from store import record
from store.errors import MessageBodyError

if TYPE_CHECKING:
    from readers.messages import Message


class BodyForm(StrEnum):
    """How bodies are shown."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"
    NONE = "none"


Body = Annotated[BodyForm, typer.Option("--body", help="How to show bodies.")]
AsJsonLines = Annotated[
    bool, typer.Option("--json", help="JSON lines on a terminal too; elsewhere they are the rule.")
]

_FORMS: dict[BodyForm, Callable[[bytes], str]] = {
    BodyForm.TEXT: lambda body: body.decode("utf-8", "backslashreplace"),
    BodyForm.HEX: bytes.hex,
    BodyForm.BASE64: lambda body: base64.b64encode(body).decode(),
}
_COLUMNS = (
    ("stored", 23), ("queue", 5), ("offset", 10), ("tags", 10), ("keys", 16), ("body", None),
)  # fmt: skip
"""Of a list, with their widths: lists grow, so that their columns must not."""


def is_for_people(as_json: bool) -> bool:
    """Whether to print tables."""
    return sys.stdout.isatty() and not as_json


def print_json_line(fields: dict[str, Any]) -> None:
    """ASCII only: no other character reaches a terminal."""
    typer.echo(json.dumps(fields).replace("\x7f", "\\u007f"))


def print_place(
    topic: str, queue_id: int, queue_offset: int, store_timestamp: int | None, as_json: bool
) -> None:
    """What a search by time found; ``store_timestamp`` None behind the last message."""
    if is_for_people(as_json):
        stored = "none stored yet" if store_timestamp is None else time_text(store_timestamp)
        rows = [(queue_id, queue_offset, stored)]
        render.print_table(topic, ("queue", "offset", "stored"), rows)
        return
    fields = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
    print_json_line({**fields, "store_timestamp": store_timestamp})


def fields_of(message: Message, queue_offset: int, body: BodyForm) -> dict[str, Any]:
    """A message for JSON; times are ms since the epoch.

    ``queue_offset``: its place in the queue that was asked, where ``get`` finds it again.
    """
    fields = {
        **record.fields_for_json(message.record),
        "queue_offset": queue_offset,
        "message_id": message.offset_message_id,
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
    }
    if body is not BodyForm.NONE:
        plain, problem = _plain_body(message)
        fields |= {"body": _FORMS[body](plain), "body_problem": problem}
    return fields


def _plain_body(message: Message) -> tuple[bytes, str | None]:
    """The body; the stored one and why, where it does not inflate."""
    try:
        return message.body(), None
    except MessageBodyError as error:
        return message.record.body, str(error)


def print_message(message: Message, queue_offset: int, body: BodyForm, as_json: bool) -> None:
    """Everything about one message."""
    fields = fields_of(message, queue_offset, body)
    if not is_for_people(as_json):
        print_json_line(fields)
        return
    for name in ("born_timestamp", "store_timestamp"):
        fields[name] = time_text(fields[name])
    fields["keys"] = " ".join(message.keys) or None
    fields |= {f"property {name}": value for name, value in fields.pop("properties").items()}
    rows = [(name, value) for name, value in fields.items() if value is not None]
    render.print_table(f"physical offset {message.physical_offset}", ("field", "value"), rows)


class MessageList:
    """Messages below each other: one list, though printed in portions."""

    def __init__(self, body: BodyForm, as_json: bool) -> None:
        self._body = body
        self._as_json = as_json
        self._has_header = False

    def print(self, found: Iterable[tuple[Message, int]]) -> None:
        """The next ones, each with its place in its queue."""
        if not is_for_people(self._as_json):
            for message, queue_offset in found:
                print_json_line(fields_of(message, queue_offset, self._body))
            return
        table = Table(box=None, expand=True, show_header=not self._has_header, padding=(0, 1, 0, 0))
        for name, width in _COLUMNS:
            table.add_column(name, width=width, ratio=None if width else 1, overflow="fold")
        for message, queue_offset in found:
            fields = fields_of(message, queue_offset, self._body)
            table.add_row(
                time_text(message.store_timestamp),
                str(message.queue_id),
                str(queue_offset),
                render.cell(message.tags or ""),
                render.cell(" ".join(message.keys)),
                render.cell(fields.get("body", "")),
            )
        if table.row_count:
            Console().print(table)
            self._has_header = True


def time_text(milliseconds: int) -> str:
    """A time for people, UTC; the number where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d}"
