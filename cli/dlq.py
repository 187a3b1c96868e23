"""``reput dlq``: lists the dead letters of an overlay, and sends them to their groups again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import messages, options, texts
from reput.cli.commands import Command, DefaultGroup
from reput.cli.groups import Group
from reput.cli.messages import DEFAULT_BODIES, Bodies
from reput.cli.overlay import entry_fields, resting_contents
from reput.cli.printer import Result, Table, printed, printed_lines
from reput.store.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from reput.overlay.drain.contents import Contents, Entry
    from reput.readers.messages import Message

app = typer.Typer(
    cls=DefaultGroup,
    help="Show dead letters of an overlay, and send them again. `list` may be left out.",
    no_args_is_help=True,
)

ID_HELP = "its id at the overlay, its UNIQ_KEY, or the id of its first copy"


@app.command("list", cls=Command)
@printed
def list_letters(
    output: options.OverlayOutput,
    group: Annotated[
        list[str] | None,
        options.value("GROUP", "Show only this consumer group; may be repeated."),
    ] = None,
    from_time: Annotated[
        str | None, options.time_value("Show those that died then or later")
    ] = None,
    to_time: Annotated[
        str | None, options.value("TIME", "Show those that died before then.")
    ] = None,
    count: Annotated[
        int, options.value("N", "How many of the last ones to show.", "--count", "-n", min=1)
    ] = 100,
) -> Result:
    """Show dead letters, the last ones of all groups, in the order in which they died."""
    from reput.overlay.drain.contents import opened_contents  # noqa: PLC0415

    begin = options.optional_time_ms("--from-time", from_time)
    end = options.optional_time_ms("--to-time", to_time)
    with opened_contents(output) as contents:
        chosen = [
            letter
            for letter in contents.dead_letters
            if (group is None or letter.group in group)
            and (begin is None or letter.store_timestamp >= begin)
            and (end is None or letter.store_timestamp < end)
        ]
        shown = [_fields(contents, letter) for letter in chosen[-count:]]
    rows = [
        (letter["group"], letter["queue_offset"], texts.time_text(letter["store_timestamp"]),
         letter["origin_topic"], letter["attempts"], letter["unique_key"] or letter["message_id"],
         "yes" if letter["sent_again"] else "")
        for letter in shown
    ]  # fmt: skip
    columns = ("group", "offset", "died", "topic", "attempts", "message", "sent again")
    earlier = len(chosen) - len(shown)
    more = f"; {earlier} earlier ones are not shown, give --count" if earlier else ""
    line = f"{texts.counted(len(shown), 'dead letter')}{more}"
    return Result({"dead_letters": shown, "earlier": earlier}, [Table("", columns, rows), line])


def _fields(contents: Contents, letter: Entry) -> dict[str, Any]:
    message = _message(contents, letter)
    names = ("queue_offset", "physical_offset", "store_timestamp", "message_id", "unique_key")
    known = messages.fields_of(message, letter.queue_offset, DEFAULT_BODIES)
    return entry_fields(letter, message.properties) | {name: known[name] for name in names}


def _message(contents: Contents, letter: Entry) -> Message:
    from reput.readers.messages import Message  # noqa: PLC0415

    return Message.of(contents.record(letter))


@app.command("show", cls=Command)
@printed_lines
@options.with_options(body=messages.bodies)
def show(
    output: options.OverlayOutput,
    group: Group,
    offset: Annotated[
        int | None,
        typer.Argument(
            min=0, help="The dead letter's offset, which `list` shows.", metavar="[OFFSET]"
        ),
    ] = None,
    message_id: Annotated[str | None, options.value("ID", f"Show the one with {ID_HELP}.")] = None,
    body: Bodies = DEFAULT_BODIES,
) -> Result:
    """Show one dead letter, as `get` shows a message; exit code 1 if there is none."""
    from reput.overlay.drain.contents import opened_contents  # noqa: PLC0415

    if (offset is None) == (message_id is None):
        raise UsageError("give OFFSET or --message-id, one of them")
    offsets = [] if offset is None else [offset]
    with opened_contents(output) as contents:
        letters = _chosen(contents, group, offsets, [] if message_id is None else [message_id])
        # several died with one UNIQ_KEY where the group got the message again: the last one
        return messages.message_result(
            _message(contents, letters[-1]), letters[-1].queue_offset, body
        )


def _chosen(
    contents: Contents, group: str, offsets: Sequence[int], ids: Sequence[str]
) -> list[Entry]:
    """The group's dead letters with these queue offsets or ids. Raises NotFoundError if one of
    these is that of none."""
    letters = [letter for letter in contents.dead_letters if letter.group == group]
    missing = {f"offset {offset}" for offset in offsets} | {f"id {each}" for each in ids}
    asked, chosen = frozenset(missing), []
    for letter in letters:
        known = {f"offset {letter.queue_offset}"}
        if ids:
            message = _message(contents, letter)
            origin = message.properties.get("ORIGIN_MESSAGE_ID")
            names = (message.offset_message_id, message.unique_key, origin)
            known |= {f"id {each}" for each in names if each is not None}
        if known & asked:
            chosen.append(letter)
            missing -= known
    if missing:
        raise NotFoundError(
            f"group {group} has no dead letter with {', '.join(sorted(missing))}: it has "
            f"{len(letters)}, which `reput dlq list` shows"
        )
    return chosen


@app.command("resend", cls=Command)
@printed
def resend(
    output: options.OverlayOutput,
    group: Group,
    offset: Annotated[
        list[int] | None,
        options.value("OFFSET", "Send the one with this offset; may be repeated.", min=0),
    ] = None,
    message_id: Annotated[
        list[str] | None,
        options.value("ID", f"Send those with {ID_HELP}; may be repeated."),
    ] = None,
    every: Annotated[bool, options.flag("Send all of the group.", "--all")] = False,
    apply: Annotated[
        bool, options.flag("Send them; otherwise they are only counted.", "--apply")
    ] = False,
) -> Result:
    """Show, or send to their group again, dead letters, as messages that have not failed yet.

    Each is sent again once, also if the command is killed and run again. No server may run on the
    overlay; the next one delivers them.
    """
    if every == bool(offset or message_id):
        raise UsageError("give --offset or --message-id, which may be repeated, or --all")
    with resting_contents(output, apply=apply) as contents:
        if every:
            letters = [each for each in contents.dead_letters if each.group == group]
        else:
            letters = _chosen(contents, group, offset or [], message_id or [])
        due = [letter for letter in letters if not letter.is_resent]
        if apply and due:
            from reput.overlay.drain.resends import resend as append  # noqa: PLC0415

            append(contents, due)
    again = len(letters) - len(due)
    line = (
        f"{texts.counted(len(due), 'dead letter')} of group {group} "
        f"{'sent again' if apply else 'would be sent again'}"
        + (f"; {again} were sent again before" if again else "")
        + ("; nothing was written, give --apply" if due and not apply else "")
    )
    offsets = [letter.queue_offset for letter in due]
    fields = {"applied": apply, "group": group, "offsets": offsets, "sent_before": again}
    return Result(fields, [line])
