"""Messages as results: for people a record or an entry of a list, for machines a JSON object."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from reput.cli import options, texts
from reput.cli.printer import Entry, Record, Result
from reput.store.errors import MessageBodyError, UsageError
from reput.store.log import record
from reput.store.log.properties import KEYS, TAGS, UNIQ_KEY
from reput.store.log.sysflag import sys_flag_names

if TYPE_CHECKING:
    from reput.readers.messages import Message


_MAGICS = {f"{record.MESSAGE_MAGIC_V1:#x}": "v1", f"{record.MESSAGE_MAGIC_V2:#x}": "v2"}
_NONE_WHERE_ZERO = ("prepared_transaction_offset", "store_checkpoint.")
"""Beginnings of the names of fields whose 0 means none."""
_ANY_NUMBER = {"flag", "tags_code"}
"""Fields in which -1 is a number as others; in every other field it means none."""
_COUNTS = {"size", "body_length"}


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
        "x".encode(charset).decode(charset, "backslashreplace")
    except (LookupError, UnicodeError) as error:
        raise UsageError(
            f"--charset is {charset!r}, which Python knows no text codec for"
        ) from error
    return Bodies(body, charset)


SHOWN_BODY_LINES = 6
"""Lines of a terminal that a body in a list may take."""


def shown_field(name: str, value: Any) -> Any:
    """Return a number as what it means: a time, the names of its bits, none."""
    if name == "sys_flag":
        return f"{value} {' '.join(sys_flag_names(value))}".rstrip()
    if name == "magic":
        return f"{value} {_MAGICS.get(value, '')}".rstrip()
    if name in _COUNTS and isinstance(value, int):
        return texts.grouped(value)
    if (value == -1 and name not in _ANY_NUMBER) or (
        value == 0 and name.startswith(_NONE_WHERE_ZERO)
    ):
        return None
    if name.endswith("_timestamp") and isinstance(value, int):
        return texts.time_text(value)
    return value


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


def message_result(message: Message, queue_offset: int, body: Bodies) -> Result:
    """Return all fields of one message."""
    fields = fields_of(message, queue_offset, body)
    shown = {name: value for name, value in fields.items() if value is not None}
    # the others are fields of their own
    shown["property"] = {
        name: value
        for name, value in shown.pop("properties").items()
        if name.encode() not in (TAGS, KEYS, UNIQ_KEY)
    }
    there = {texts.label(name): shown_field(name, value) for name, value in shown.items()}
    return Result(fields, [Record(f"physical offset {message.physical_offset}", there)])


def entry_result(message: Message, queue_offset: int, body: Bodies) -> Result:
    """Return one of several messages: for people its heading and its body."""
    fields = fields_of(message, queue_offset, body)
    named = {"queue": fields["queue_id"], "offset": fields["queue_offset"]}
    named |= {"tags": message.tags, "keys": " ".join(message.keys)}
    words = [f"{name} {value}" for name, value in named.items() if value not in (None, "")]
    heading = "  ".join((texts.time_text(message.store_timestamp), *words))
    return Result(fields, [Entry(heading, fields.get("body"), SHOWN_BODY_LINES)])
