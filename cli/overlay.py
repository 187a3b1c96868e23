"""``reput overlay``: shows what consuming has left in an overlay, and sends it into a broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import messages, options, render, texts
from reput.cli.clientoptions import address
from reput.cli.commands import Command, Group
from reput.cli.handover import handover
from reput.cli.messages import DEFAULT_BODIES, Bodies
from reput.cli.printer import Entry as Shown
from reput.cli.printer import Part, Record, Result, Table, printed, printed_lines
from reput.store.brokerlock import BrokerLock, broker_pid
from reput.store.errors import OwnershipError, UsageError
from reput.store.files import STATE_DIRECTORY
from reput.store.state.watermark import read_watermark

if TYPE_CHECKING:
    from reput.overlay.drain.contents import Contents, Entry
    from reput.overlay.drain.drain import Drained

app = typer.Typer(
    cls=Group,
    help="Show what consuming has left in an overlay, and send it into a broker.",
    no_args_is_help=True,
)

Apply = Annotated[
    bool, options.flag("Send the messages; otherwise they are only counted.", "--apply")
]


def now_ms() -> int:
    """The time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


@contextmanager
def resting_contents(output: Path, *, apply: bool) -> Iterator[Contents]:
    """Read the overlay of an output, on which no server runs. With ``apply`` nobody else writes to
    it during the block. Raises OwnershipError, NotFoundError, StoreError."""
    from reput.overlay.drain.contents import opened_contents, overlay_of  # noqa: PLC0415

    root = overlay_of(output)
    _check_no_server(root)
    with ExitStack() as opened:
        if apply:
            # before the log is read: nobody would see what is written to it meanwhile
            opened.enter_context(BrokerLock(root))
        yield opened.enter_context(opened_contents(output))


def _check_no_server(root: Path) -> None:
    """Raise OwnershipError while a server runs on the overlay at ``root``."""
    pid = broker_pid(root)
    if pid is not None:
        raise OwnershipError(
            f"process {pid} serves {root}, and delivers what waits there: stop that "
            "`reput serve --overlay` first",
            path=root,
        )


@app.command("status", cls=Command)
@printed
def status(output: options.OverlayOutput) -> Result:
    """Show what waits, is delivered and not consumed, or is dead, by consumer group.

    It writes nothing, and a server may run meanwhile.
    """
    from reput.overlay.drain.contents import opened_contents  # noqa: PLC0415
    from reput.overlay.drain.drainjournal import DrainNotes  # noqa: PLC0415

    with opened_contents(output) as contents:
        root = contents.root
        groups = _groups(contents)
        watermark = read_watermark(root / STATE_DIRECTORY)
        notes = DrainNotes(root)
        fields = {
            "overlay": str(root),
            "server_pid": broker_pid(root),
            "log_begin": contents.begin,
            "log_end": contents.end,
            "log_bytes": contents.end - contents.begin,
            "dispatched": watermark.end_offset if watermark else None,
            "drained_to": notes.target,
            "drained": len(notes.message_ids),
            "groups": groups,
            "left_out": dict(contents.left_out),
        }
    return Result(fields, list(_status_parts(fields, groups)))


def _groups(contents: Contents) -> list[dict[str, Any]]:
    from reput.overlay.drain.contents import Kind  # noqa: PLC0415

    by_name: dict[tuple[str, str], list[Entry]] = {}
    for entry in contents.entries:
        name = entry.topic.decode(errors="replace") if entry.group is None else ""
        by_name.setdefault((entry.group or "", name), []).append(entry)
    groups = []
    for (group, topic), entries in sorted(by_name.items()):
        waiting = [entry for entry in entries if entry.kind is Kind.WAITING]
        dead = [entry for entry in entries if entry.kind is Kind.DEAD]
        levels = [
            {"level": level, "messages": len(of_level), "next_due": min(of_level)}
            for level in sorted({entry.level for entry in waiting})
            if (of_level := [entry.due_ms or 0 for entry in waiting if entry.level == level])
        ]
        groups.append(
            {
                "group": group or None,
                "topic": topic or None,
                "waiting": len(waiting),
                "next_due": min((entry.due_ms or 0 for entry in waiting), default=None),
                "levels": levels,
                "delivered": sum(entry.kind is Kind.DELIVERED for entry in entries),
                "dead": len(dead),
                "dead_sent_again": sum(entry.is_resent for entry in dead),
            }
        )
    return groups


def _status_parts(fields: dict[str, Any], groups: Sequence[dict[str, Any]]) -> Iterator[Part]:
    pid = fields["server_pid"]
    yield Record(
        fields["overlay"],
        {
            "server": f"process {pid}" if pid else "none runs",
            "log": f"{texts.human_bytes(fields['log_bytes'])}, "
            f"[{fields['log_begin']}, {fields['log_end']})",
            "dispatched to": fields["dispatched"],
            "sent into a broker": f"{fields['drained']} to {fields['drained_to']}"
            if fields["drained_to"] else None,
        },
    )  # fmt: skip
    rows = [
        (group["group"] or f"topic {group['topic']}", *map(texts.grouped, (
            group["waiting"], group["delivered"], group["dead"], group["dead_sent_again"])),
         texts.time_text(group["next_due"]))
        for group in groups
    ]  # fmt: skip
    columns = ("group", "waiting", "not consumed", "dead", "sent again", "next due")
    yield Table("messages by group", columns, rows)
    waits = [
        (group["group"] or f"topic {group['topic']}", level["level"] or "timer",
         texts.grouped(level["messages"]), texts.time_text(level["next_due"]))
        for group in groups for level in group["levels"]
    ]  # fmt: skip
    yield Table("waiting by level", ("group", "level", "messages", "next due"), waits)
    if not rows:
        yield "nothing waits, and there are no dead letters"
    for reason, count in fields["left_out"].items():
        yield f"not counted: {count} of the kind {reason}"


@app.command("export", cls=Command)
@printed_lines
@options.with_options(body=messages.bodies)
def export(
    output: options.OverlayOutput,
    group: Annotated[
        list[str] | None,
        options.value("GROUP", "Take only this consumer group; may be repeated."),
    ] = None,
    body: Bodies = DEFAULT_BODIES,
) -> Iterator[Result]:
    """Print every message that waits, is not consumed, or is dead, in JSON lines.

    `reput export OUTPUT/overlay` writes all records of the overlay as Parquet files.
    """
    from reput.overlay.drain.contents import opened_contents  # noqa: PLC0415

    with opened_contents(output) as contents:
        for entry in contents.entries:
            if group is None or entry.group in group:
                yield entry_result(contents, entry, body)


def entry_result(contents: Contents, entry: Entry, body: Bodies) -> Result:
    """Return one message of an overlay, with what it is to its group."""
    from reput.readers.messages import Message  # noqa: PLC0415

    message = Message.of(contents.record(entry))
    fields = {**entry_fields(entry, message.properties)}
    fields |= messages.fields_of(message, entry.queue_offset, body)
    words = [entry.kind.value, f"group {entry.group}" if entry.group else "",
             fields["origin_topic"], f"attempts {entry.reconsume_times}"]  # fmt: skip
    if entry.due_ms is not None:
        words.append(f"due {texts.time_text(entry.due_ms)}")
    heading = "  ".join(filter(None, words))
    return Result(fields, [Shown(heading, fields.get("body"), messages.SHOWN_BODY_LINES)])


def entry_fields(entry: Entry, properties: dict[str, str]) -> dict[str, Any]:
    """Return the JSON fields that say what a message is to its group."""
    topic = entry.topic.decode(errors="replace")
    return {
        "kind": entry.kind.value,
        "group": entry.group,
        "origin_topic": properties.get("RETRY_TOPIC", topic),
        "origin_message_id": properties.get("ORIGIN_MESSAGE_ID"),
        "attempts": entry.reconsume_times,
        "due": entry.due_ms,
        "sent_again": entry.is_resent,
    }


@app.command("drain", cls=Command)
@printed
def drain(
    output: options.OverlayOutput,
    broker: Annotated[
        str | None, options.value("HOST:PORT", "Send to this broker.", "--broker")
    ] = None,
    namesrv: Annotated[
        str | None,
        options.value(
            "HOST:PORT", "Send to the only broker that this name server knows.", "--namesrv"
        ),
    ] = None,
    apply: Apply = False,
) -> Result:
    """Show, or send into a broker, every message that waits, is not consumed, or is dead.

    Each is sent once, also if the command is killed and run again. No server may run on the
    overlay. Afterwards its consumers belong to the broker: move `OUTPUT/overlay` away.
    """
    from reput.overlay.drain.drain import planned  # noqa: PLC0415
    from reput.overlay.drain.drainjournal import DrainNotes  # noqa: PLC0415
    from reput.serving.client import only_broker  # noqa: PLC0415

    if (broker is None) == (namesrv is None):
        raise UsageError("give --broker or --namesrv, one of them")
    with resting_contents(output, apply=apply) as contents:
        if broker is not None:
            host, port = address("--broker", broker)
        else:
            host, port = address("", only_broker(*address("--namesrv", namesrv or "")))
        target = f"{host}:{port}"
        notes = DrainNotes(contents.root)
        notes.check_target(target)
        done = _drain(contents, notes, host, port) if apply else planned(contents, notes)
    return _drain_result(target, done, apply=apply)


def _drain(contents: Contents, notes: Any, host: str, port: int) -> Drained:
    from reput.overlay.drain.drain import Drain, to_send  # noqa: PLC0415
    from reput.overlay.drain.drainjournal import DrainJournal  # noqa: PLC0415
    from reput.serving.client import BrokerClient  # noqa: PLC0415

    total = len(to_send(contents, notes))

    def show(done: int) -> None:
        text = f"{texts.grouped(done)} of {texts.counted(total, 'message')}"
        display.update(done, total, text, {"messages": done, "of_messages": total})

    with (
        BrokerClient(host, port) as client,
        DrainJournal(notes, contents.root, client.address) as journal,
        render.ProgressDisplay("draining") as display,
    ):
        return Drain(contents, notes, journal, client, now_ms).run(show)


def _drain_result(target: str, done: Drained, *, apply: bool) -> Result:
    total = done.sent.total()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.sent.items()))
    words = f"{texts.counted(total, 'message')}{f' ({kinds})' if kinds else ''}"
    line = f"{words} {'sent' if apply else 'would be sent'} to {target}"
    if done.found:
        line += f"; the broker had {done.found} of a run that was killed"
    if done.before:
        line += f"; {done.before} were sent before"
    if done.remaining:
        line += f"; {done.remaining} were not: run the same command again for those"
    if not apply and total:
        line += "; nothing was sent, give --apply"
    table = Table("left out", ("messages", "why"), _counts(done.left_out), folds=True)
    fields = {
        "applied": apply,
        "broker": target,
        "sent": {str(kind): count for kind, count in sorted(done.sent.items())},
        "found": done.found,
        "sent_before": done.before,
        "remaining": done.remaining,
        "left_out": dict(done.left_out),
    }
    return Result(fields, [table, line], exit_code=int(done.remaining > 0))


def _counts(left_out: Counter[str]) -> list[tuple[object, ...]]:
    return [(count, reason) for reason, count in sorted(left_out.items())]


app.command("handover", cls=Command)(handover)
