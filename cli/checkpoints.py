"""``reput checkpoints``: shows, checks and rewinds the positions of an output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import options, texts
from reput.cli.commands import Command, DefaultGroup
from reput.cli.printer import Part, Record, Result, Table, printed
from reput.store.config import StoreSettings
from reput.store.errors import UsageError

if TYPE_CHECKING:
    from reput.checkpoints.history import Batch
    from reput.checkpoints.keptstate import KeptState
    from reput.upkeep.checkpoints import Rewound

app = typer.Typer(
    cls=DefaultGroup,
    help="Show, check and rewind the positions of an output. `list` may be left out.",
    no_args_is_help=True,
)

Checkpoint = Annotated[
    Path | None,
    options.value("DIR", "Directory of Spark's checkpoint; `OUTPUT/reput/spark` if not given."),
]
BATCH_COLUMNS = ("batch", "from", "to", "bytes", "planned", "state")
KEPT_COLUMNS = ("kept", "bytes", "rewound", "from", "to")


@app.command("list", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def list_batches(
    store: options.Store,
    settings: StoreSettings,
    output: options.ReadOutput = None,
    checkpoint: Checkpoint = None,
) -> Result:
    """Show the batches that Spark's checkpoint lists, the watermark, and what is kept of earlier
    states. Reads only."""
    from reput.upkeep.checkpoints import read_positions  # noqa: PLC0415

    positions = read_positions(settings, output or store, checkpoint)
    fields = {
        "watermark": positions.watermark,
        "log_min": positions.log_min,
        "log_end": positions.log_end,
        "checkpoint": str(positions.spark_directory),
        "batches": [
            _batch_fields(batch, positions.watermark) for batch in positions.history.batches
        ],
        "damage": positions.history.damage,
        "kept": [_kept_fields(state) for state in positions.kept],
    }
    rows = [_batch_row(batch, positions.watermark) for batch in positions.history.batches]
    line = (
        f"{texts.counted(len(rows), 'batch', 'batches')} in {positions.spark_directory}; the "
        f"watermark is {positions.watermark}, the log is [{positions.log_min}, {positions.log_end})"
    )
    table = Table("batches of Spark's checkpoint", BATCH_COLUMNS, rows)
    damage = [
        f"damaged: {positions.spark_directory.name}/{name}" for name in positions.history.damage
    ]
    return Result(fields, [table, _kept_table(positions.kept), *damage, line])


@app.command("show", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def show(
    store: options.Store,
    settings: StoreSettings,
    batch: Annotated[int, typer.Argument(min=0, help="The batch's number.", metavar="BATCH")],
    output: options.ReadOutput = None,
    checkpoint: Checkpoint = None,
) -> Result:
    """Show one batch with the messages of its range; exit code 1 if it is not listed. Reads
    only."""
    from reput.upkeep.checkpoints import read_batch  # noqa: PLC0415

    detail = read_batch(settings, output or store, checkpoint, batch)
    described_batch = detail.batch
    bad = [{"from": bad.start, "to": bad.end, "reason": bad.status.name.lower()}
           for bad in detail.bad]  # fmt: skip
    times = {"first_stored": detail.first_stored_ms, "last_stored": detail.last_stored_ms}
    names = ("from", "to", "bytes", "planned", "state")
    shown = {
        **dict(zip(names, _batch_row(described_batch, detail.watermark)[1:], strict=True)),
        "messages": texts.grouped(detail.messages),
        **{texts.label(name): texts.time_text(time) for name, time in times.items()},
        "damaged": ", ".join(
            f"[{entry['from']}, {entry['to']}) {entry['reason']}" for entry in bad
        ) or "none",
    }  # fmt: skip
    fields = _batch_fields(described_batch, detail.watermark) | {
        "messages": detail.messages,
        **times,
        "bad": bad,
    }
    return Result(fields, [Record(f"batch {described_batch.batch_id}", shown)])


@app.command("verify", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def verify(
    store: options.Store,
    settings: StoreSettings,
    output: options.ReadOutput = None,
    checkpoint: Checkpoint = None,
) -> Result:
    """Look for damage in the watermark and in Spark's checkpoint, and say what the next start
    would do; exit code 1 for damage. Reads only."""
    from reput.upkeep.checkpoints import check  # noqa: PLC0415

    verification = check(settings, output or store, checkpoint)
    count = len(verification.problems)
    parts = [
        *(f"damaged: {line}" for line in verification.problems),
        *(f"next start: {line}" for line in verification.next_start),
        texts.counted(count, "problem") if count else "no problems",
    ]
    return Result(asdict(verification), parts, exit_code=int(count > 0), has_settings=True)


@app.command("rewind", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def rewind(
    store: options.Store,
    settings: StoreSettings,
    to_batch: Annotated[
        int | None,
        options.value("BATCH", "Rewind to where this batch of Spark's checkpoint began.", min=0),
    ] = None,
    to_offset: Annotated[
        int | None,
        options.value("OFFSET", "Rewind to the record at this physical offset.", min=0),
    ] = None,
    to_file: Annotated[
        str | None, options.value("NAME", "Rewind to the beginning of this file of the log.")
    ] = None,
    to_time: Annotated[
        str | None, options.time_value("Rewind to the first message stored then or later")
    ] = None,
    apply: Annotated[
        bool, options.flag("Apply the rewind; without it, only show what would change.", "--apply")
    ] = False,
    output: options.Output = None,
    checkpoint: Checkpoint = None,
) -> Result:
    """Take an output back to an earlier place of the log; a dry run unless --apply is given.

    Everything built from later messages is cut, and Delta tables and Kafka mirrors get those
    messages again. The old positions are kept. Stop the dispatcher first; if a rewind is killed,
    the old or the new state counts, and the next run cleans up.
    """
    from reput.checkpoints.rewind import Target  # noqa: PLC0415
    from reput.upkeep.checkpoints import rewind as rewind_output  # noqa: PLC0415

    if [to_batch, to_offset, to_file, to_time].count(None) != 3:
        raise UsageError("give one of --to-batch, --to-offset, --to-file and --to-time")
    target = Target(to_batch, to_offset, to_file, options.optional_time_ms("--to-time", to_time))
    rewound = rewind_output(settings, output or store, checkpoint, target, apply=apply)
    return Result(_rewind_fields(rewound), _rewind_parts(rewound))


def _rewind_fields(rewound: Rewound) -> dict[str, Any]:
    names = ("watermark", "offset", "asked_offset", "messages", "queues", "units", "ledger_lines")
    return {
        "applied": rewound.applied,
        **{name: getattr(rewound.rewind, name) for name in names},
        "batches": rewound.batches,
        "followers": rewound.followers,
        "kept": None if rewound.kept is None else str(rewound.kept),
    }


def _rewind_parts(rewound: Rewound) -> Iterator[Part]:
    plan = rewound.rewind
    if plan.offset == plan.watermark:
        yield f"nothing to rewind: the watermark is {plan.watermark}"
        return
    yield Record(
        "rewound" if rewound.applied else "to rewind",
        {
            "from watermark": plan.watermark,
            "to": plan.offset,
            "messages": f"{plan.messages:,} in {texts.human_bytes(plan.watermark - plan.offset)}",
            "queues cut": f"{plan.queues:,}, {texts.counted(plan.units, 'unit')}",
            "ledger lines": texts.grouped(plan.ledger_lines),
            "spark's batches": _ranges(rewound.batches),
            "followers": " ".join(rewound.followers) or "none",
            **({} if rewound.kept is None else {"the old is kept": str(rewound.kept)}),
        },
    )
    if plan.asked_offset != plan.offset:
        yield (
            f"{plan.asked_offset} is no record's start: taken down to {plan.offset}, the start of "
            "what contains it"
        )
    yield (
        "reput run dispatches from there; no broker may start here before"
        if rewound.applied
        else "nothing was changed, give --apply"
    )


def _ranges(batches: Sequence[int]) -> str:
    if not batches:
        return "none"
    return f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else f"{batches[0]}"


@app.command("prune", cls=Command)
@printed
@options.with_options(settings=options.output_settings)
def prune(
    store: options.Store,
    settings: StoreSettings,
    apply: Annotated[
        bool, options.flag("Remove what is kept; otherwise it is only shown.", "--apply")
    ] = False,
    output: options.Output = None,
    checkpoint: Checkpoint = None,
) -> Result:
    """Show, or remove, the positions and Spark checkpoints that rewinds and starts have kept."""
    from reput.upkeep.checkpoints import prune as prune_output  # noqa: PLC0415

    states = prune_output(settings, output or store, checkpoint, apply=apply)
    size = texts.human_bytes(sum(state.bytes for state in states))
    done = "removed" if apply else "kept"
    advice = "; nothing was removed, give --apply" if states and not apply else ""
    line = f"{texts.counted(len(states), 'state')} {done}, {size}{advice}"
    fields = {"applied": apply, "kept": [_kept_fields(state) for state in states]}
    return Result(fields, [_kept_table(states), line])


def _size(batch: Batch) -> int | None:
    return None if batch.start is None else batch.end - batch.start


def _state(batch: Batch, watermark: int) -> str:
    if batch.end <= watermark:
        return "durable" if batch.is_committed else "durable, not committed"
    return "beyond the watermark"


def _batch_row(batch: Batch, watermark: int) -> tuple[object, ...]:
    return (
        batch.batch_id, texts.known(batch.start), batch.end, texts.grouped(_size(batch)),
        texts.time_text(batch.planned_ms), _state(batch, watermark),
    )  # fmt: skip


def _batch_fields(batch: Batch, watermark: int) -> dict[str, Any]:
    return {
        "batch": batch.batch_id,
        "from": batch.start,
        "to": batch.end,
        "bytes": _size(batch),
        "planned_ms": batch.planned_ms,
        "committed": batch.is_committed,
        "durable": batch.end <= watermark,
    }


def _kept_fields(kept: KeptState) -> dict[str, Any]:
    return {**asdict(kept), "path": str(kept.path)}


def _kept_table(kept: Sequence[KeptState]) -> Table:
    rows = [
        (state.path.name, texts.grouped(state.bytes), texts.moment_text(state.when),
         texts.known(state.from_offset), texts.known(state.to_offset))
        for state in kept
    ]  # fmt: skip
    return Table("kept", KEPT_COLUMNS, rows)
