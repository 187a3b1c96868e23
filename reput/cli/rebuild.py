"""``reput rebuild``: builds queues and indexes anew, compares them and swaps them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import options, render, tables
from reput.cli.comparison import comparison_lines, print_differences
from store.errors import UsageError
from store.index.indexfile import INDEX_DIRECTORY
from streaming.config import DispatcherConfig
from streaming.jvm import started
from upkeep.compare import DIRECTORY_KINDS

if TYPE_CHECKING:
    from upkeep.rebuild import Rebuilt

DIFFERENT = 1
SHOWN_DIFFERENCES = 10


@options.with_options(flags=options.build_flags, dispatcher=options.dispatcher_settings)
def rebuild(
    store: options.Store,
    output: options.Output = None,
    topic: Annotated[
        list[str] | None,
        options.value(
            "TOPIC", "Replace only the queues of this topic; may be repeated.", "--topic", "-t"
        ),
    ] = None,
    only: options.Only = None,
    dry_run: Annotated[
        bool,
        options.flag("Build and compare only; exit code 1 if anything differs.", "--dry-run"),
    ] = False,
    drop_old: Annotated[
        bool,
        options.flag("Build nothing, and remove what earlier rebuilds kept.", "--drop-old"),
    ] = False,
    executors: Annotated[
        bool,
        options.flag(
            "Let Spark's executors write the queues; every node must see STORE and the output, "
            "and may write there.",
            "--executors",
        ),
    ] = False,
    *,
    flags: dict[str, Any],
    dispatcher: dict[str, Any],
    as_json: options.AsJson = False,
) -> None:
    """Build queues and index anew from a store's commitlog, compare, and swap them in.

    It keeps what it replaces as `consumequeue.replaced-N`, and does not start while a broker or a
    dispatcher runs there. If it is killed, either the old or the new files are in place, and the
    next start finishes the swap or removes the rest.
    """
    if dry_run and drop_old:
        raise UsageError("--dry-run and --drop-old exclude each other; give one of them")
    if executors and drop_old:
        raise UsageError("--drop-old builds nothing, so that --executors has no work; give one")
    root = output or store
    if drop_old:
        _drop_old(root, as_json)
        return
    kinds = options.kinds_option(only, DIRECTORY_KINDS)
    config = DispatcherConfig(
        store=store,
        output=root,
        # an index that is asked for by name is built from now on
        index=True if only is not None and INDEX_DIRECTORY in kinds else None,
        **flags,
        **dispatcher,
    )
    _show(_rebuild(config, kinds, topic, dry_run, executors), root, dry_run, as_json)


def _drop_old(root: Path, as_json: bool) -> None:
    from upkeep.rebuild import drop_old  # noqa: PLC0415

    dropped = [str(path) for path in drop_old(root)]
    if as_json:
        render.print_json({"removed": dropped})
    else:
        tables.print_line(f"removed {', '.join(dropped) or 'nothing'}")


def _rebuild(
    config: DispatcherConfig,
    kinds: Sequence[str],
    topics: list[str] | None,
    dry_run: bool,
    executors: bool,
) -> Rebuilt:
    config.open_store()[1].close()  # a mistake is answered before Java starts
    display = render.ProgressDisplay()
    try:
        with started(config.spark_conf) as jvm, render.stopped_by_signals() as stop:
            # pyspark, numba and Arrow take a second to import: the JVM starts meanwhile
            from upkeep.rebuild import rebuild as build  # noqa: PLC0415

            return build(
                config, stop, display, jvm,
                kinds=kinds, topics=topics, dry_run=dry_run, on_executors=executors,
            )  # fmt: skip
    finally:
        display.close()


def _show(done: Rebuilt, root: Path, dry_run: bool, as_json: bool) -> None:
    found = done.comparison
    if as_json:
        fields = {"equal": found.is_equal, **asdict(found), "kept": [str(p) for p in done.kept]}
        render.print_json({**done.progress.summary(), "replaced": not dry_run, **fields})
    else:
        if found.differences:
            shown = found.differences[:SHOWN_DIFFERENCES]
            print_differences(shown, "was there", "built")
            tables.print_line(
                f"the first {len(shown)} of {tables.counted(len(found.differences), 'difference')}"
            )
        for line in comparison_lines(found):
            tables.print_line(line)
        messages = done.progress.summary()["messages"]
        tables.print_line(f"{tables.counted(messages, 'message')} dispatched")
        if dry_run:
            tables.print_line(
                "a dry run: nothing was replaced; without --dry-run the built files are swapped in"
            )
        else:
            kept = ", ".join(path.name for path in done.kept)
            old = f"the old is kept: {kept}" if kept else "nothing was there before"
            tables.print_line(f"replaced in {root}; {old}")
    if dry_run and not found.is_equal:
        raise typer.Exit(DIFFERENT)
