"""``reput shadow``: runs the dispatcher beside a broker, and compares the queues of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from reput.cli import options, texts
from reput.cli.printer import Part, Record, Result, Table, printed
from reput.cli.run import dispatch, open_store
from reput.store.errors import UsageError
from reput.store.state.built import settings_of
from reput.streaming.config import DispatcherConfig
from reput.upkeep.entryfields import fields_text
from reput.upkeep.shadow import Shadow, ShadowResult


@printed
@options.with_options(
    settings=options.dispatcher_fields("shadow"),
    flags=options.run_flags,
    dispatcher=options.dispatcher_fields(None),
)
def shadow(
    store: options.Store,
    output: Annotated[
        Path, options.value("DIR", "Root directory to write to, not the store.", "--output", "-o")
    ],
    *,
    settings: dict[str, Any],
    flags: dict[str, Any],
    dispatcher: dict[str, Any],
    log_level: options.LogLevel = "info",
) -> Result:
    """Follow a live broker into an output of its own, and compare both sides' queues as they grow.

    It ends as `reput run` does. The exit code is 1 if an entry differs or nothing was compared;
    entries that the broker has yet to write are only counted.
    """
    del log_level  # it counts from the start
    if output.resolve() == store.resolve():
        raise UsageError("--output is the store itself; give a directory for queues to compare")
    config = DispatcherConfig(store, output, **settings, flags=flags, **dispatcher)
    given = open_store(config)
    comparison = Shadow(settings_of(output, given, config.flags), output)
    progress = dispatch(config, comparison)
    result = comparison.result
    fields = {**progress.summary(), "equal": result.is_equal, **asdict(result)}
    return Result(fields, _parts(result), exit_code=int(not result.is_equal))


def _parts(result: ShadowResult) -> Iterator[Part]:
    for difference in result.differences:
        sides = {"reput": fields_text(difference.reput), "broker": fields_text(difference.broker)}
        yield Record(f"{difference.place}, unit {difference.unit}", sides, is_listed=True)
    rows = [
        (kind, *map(texts.grouped, (each.queues, each.entries, each.awaited, each.uncomparable)))
        for kind, each in result.compared.items()
    ]
    columns = ("kind", "queues", "entries equal", "awaited", "queues not comparable")
    yield Table("", columns, rows)
    if result.differences:
        line = f"{texts.counted(len(result.differences), 'queue')} with a difference"
    elif result.is_equal:
        line = "no differences"
    else:
        line = "nothing was compared: no entry is in both the output and the store's own queues"
    yield line
