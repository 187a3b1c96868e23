"""Messages on stdout: tables on a terminal, one JSON object a line elsewhere. In both forms,
characters that could act on a terminal are escaped."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from reput.cli import options, render, tables
from reput.store.errors import MessageBodyError, UsageError
from reput.store.log import record

if TYPE_CHECKING:
    from reput.readers.messages import Message


class BodyForm(StrEnum):
    """The form in which bodies are printed: UTF-8 text, with escapes for other bytes; hex digits;
    base64; or not at all."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Bodies:
    """How bodies are printed."""

    form: BodyForm
    charset: str
    """The charset of bodies that are printed as text."""

    def text_of(self, body: bytes) -> str | None:
        """Return a body in its form; None where bodies are not printed."""
        match self.form:
            case BodyForm.TEXT:
                return body.decode(self.charset, "backslashreplace")
            case BodyForm.HEX:
                return body.hex()
            case BodyForm.BASE64:
                return base64.b64encode(body).decode()
            case BodyForm.NONE:
                return None


DEFAULT_BODIES = Bodies(BodyForm.TEXT, "utf-8")


def bodies(
    body: Annotated[
        BodyForm,
        options.value(
            "FORM", "Show bodies as `text`, `hex`, `base64` or not at all (`none`).", "--body"
        ),
    ] = BodyForm.TEXT,
    charset: Annotated[
        str,
        options.value("NAME", "The charset of bodies shown as text: `gbk`, `utf-16`, ..."),
    ] = DEFAULT_BODIES.charset,
) -> Bodies:
    """Return how bodies are printed. Raises UsageError for an unknown charset."""
    try:
        "x".encode(charset)
    except (LookupError, UnicodeError) as error:
        raise UsageError(
            f"--charset is {charset!r}, which Python knows no text codec for"
        ) from error
    return Bodies(body, charset)


SHOWN_BODY_LINES = 6
"""Lines of a terminal that a body in a list may take."""


def is_for_people(as_json: bool) -> bool:
    """Whether to print tables: stdout is a terminal, and ``--json`` is not given."""
    return sys.stdout.isatty() and not as_json


def print_place(
    topic: str, queue_id: int, queue_offset: int, store_timestamp: int | None, as_json: bool
) -> None:
    """Print the place that a search by time found; ``store_timestamp`` is None beyond the last
    message."""
    if is_for_people(as_json):
        stored = "none stored yet" if store_timestamp is None else tables.time_text(store_timestamp)
        rows = [(queue_id, queue_offset, stored)]
        tables.print_table(topic, ("queue", "offset", "stored"), rows)
        return
    fields = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
    render.print_json({**fields, "store_timestamp": store_timestamp})


def fields_of(message: Message, queue_offset: int, body: Bodies) -> dict[str, Any]:
    """Return a message as JSON fields; times are ms since the epoch.

    ``queue_offset`` is its offset in the queue that was read, at which ``get`` finds it again.
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
    if body.form is not BodyForm.NONE:
        plain, problem = _plain_body(message)
        fields |= {"body": body.text_of(plain), "body_problem": problem}
    return fields


def _plain_body(message: Message) -> tuple[bytes, str | None]:
    """Return (body, None), or (stored bytes, reason) for a body that does not inflate."""
    try:
        return message.body(), None
    except MessageBodyError as error:
        return message.record.body, str(error)


def print_message(message: Message, queue_offset: int, body: Bodies, as_json: bool) -> None:
    """Print all fields of one message: a line each on a terminal, otherwise one JSON object."""
    fields = fields_of(message, queue_offset, body)
    if not is_for_people(as_json):
        render.print_json(fields)
        return
    for name in ("born_timestamp", "store_timestamp"):
        fields[name] = tables.time_text(fields[name])
    fields["keys"] = " ".join(message.keys) or None
    fields["property"] = fields.pop("properties")
    there = {name: value for name, value in fields.items() if value is not None}
    tables.print_fields(f"physical offset {message.physical_offset}", there)


class MessageList:
    """Prints messages one below the other, each as a heading and its body."""

    def __init__(self, body: Bodies, as_json: bool) -> None:
        self._body = body
        self._as_json = as_json
        self.count = 0
        """Messages printed so far."""

    def print(self, found: Iterable[tuple[Message, int]]) -> None:
        """Print further messages, given with the queue offset of each."""
        for message, queue_offset in found:
            self.count += 1
            fields = fields_of(message, queue_offset, self._body)
            if is_for_people(self._as_json):
                self._print_for_people(message, fields)
            else:
                render.print_json(fields)

    def _print_for_people(self, message: Message, fields: dict[str, Any]) -> None:
        named = {"queue": fields["queue_id"], "offset": fields["queue_offset"]}
        named |= {"tags": message.tags, "keys": " ".join(message.keys)}
        words = [
            f"{name} {tables.shown(value)}"
            for name, value in named.items()
            if value not in (None, "")
        ]
        heading = "  ".join((tables.time_text(message.store_timestamp), *words))
        tables.print_entry(heading, fields.get("body"), SHOWN_BODY_LINES)
