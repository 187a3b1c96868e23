"""``reput rebuild``: builds queues and indexes anew, compares them and swaps them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reput.checkpoints.ownership import check_is_free
from reput.cli import options, render, severalstores, texts
from reput.cli.comparison import comparison_lines, difference_records
from reput.cli.printer import Part, Result, printed
from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.files import INDEX_DIRECTORY
from reput.store.queue.topics import check_topics
from reput.store.state.built import index_flags, topic_begins
from reput.store.state.movedpositions import ADVICE
from reput.streaming.config import DispatcherConfig
from reput.streaming.spark.jvm import started
from reput.upkeep.compare import DIRECTORY_KINDS

if TYPE_CHECKING:
    from reput.streaming.progress import Progress
    from reput.upkeep.rebuild import Rebuilt
    from reput.upkeep.rebuildstores import StoreRebuild

SHOWN_DIFFERENCES = 10
DropOld = Annotated[
    bool, options.flag("Build nothing, and remove what earlier rebuilds kept.", "--drop-old")
]
Since = Annotated[int | None, options.declared(StoreSettings, "topic_begins", min=0)]


@printed
@options.with_options(flags=options.build_flags, dispatcher=options.dispatcher_fields(None))
def rebuild(
    store: severalstores.OneStore = None,
    output: options.Output = None,
    stores: severalstores.Stores = None,
    outputs: severalstores.Outputs = None,
    topic: Annotated[
        list[str] | None,
        options.value(
            "TOPIC", "Replace only the queues of this topic; may be repeated.", "--topic", "-t"
        ),
    ] = None,
    since: Since = None,
    only: options.Only = None,
    dry_run: Annotated[
        bool,
        options.flag("Build and compare only; exit code 1 if anything differs.", "--dry-run"),
    ] = False,
    drop_old: DropOld = False,
    executors: Annotated[
        bool,
        options.flag(
            "Let Spark's executors write the queues; every node must see STORE and the output, "
            "and may write there.",
            "--executors",
        ),
    ] = False,
    sealed: Annotated[
        bool,
        options.flag(
            "Copy what `reput verify --sealed` has sealed, and build only what follows; if any of "
            "it has changed, build everything. Excludes `--executors`.",
            "--sealed",
        ),
    ] = False,
    *,
    flags: dict[str, Any],
    dispatcher: dict[str, Any],
) -> Iterator[Result]:
    """Build queues and index anew from a store's commitlog, compare, and swap them in.

    It keeps what it replaces as `consumequeue.replaced-N`, and does not start while a broker or a
    dispatcher runs there. If it is killed, either the old or the new files are in place, and the
    next start finishes the swap or removes the rest. With `--stores` several brokers' stores are
    rebuilt side by side; one that fails is left as it was.
    """
    _check_flags(dry_run, drop_old, executors, sealed)
    several = severalstores.several_stores(store, stores, outputs)
    if several is not None:
        own_options = {"output": output, "topic": topic, "from": since}
        several.refuse(own_options | {"broker_conf": dispatcher.get("broker_conf")})
    root = store or Path()
    roots = {root: output or root} if several is None else several.find()
    if drop_old:
        yield _drop_old(roots.values())
        return
    kinds = options.kinds_option(only, DIRECTORY_KINDS)
    # an index that is asked for by name is built from now on
    index = True if only is not None and INDEX_DIRECTORY in kinds else None
    flags |= index_flags(index) | _begins(output or root, topic, since)
    given = {"flags": flags, **dispatcher}
    configs = {root: DispatcherConfig(root, place, **given) for root, place in roots.items()}
    choice = {"kinds": kinds, "topics": topic, "dry_run": dry_run, "sealed": sealed}
    if several is None:
        done = _rebuild(configs[root], executors, choice)
        code = int(dry_run and not done.comparison.is_equal)
        yield Result(_fields(done, dry_run), _parts(done, roots[root], dry_run), code)
        return
    results = _rebuild_all([*configs.values()], executors, choice)
    yield _result_of_all(results, dry_run)
    severalstores.raise_failures({store.config.store: store.error for store in results})


def _begins(
    output: Path, topics: Sequence[str] | None, since: int | None
) -> dict[str, Mapping[str, int]]:
    """Return the field of where topics begin from now on; none where that stays. Raises
    UsageError."""
    if since is None:
        return {}
    if not topics:
        raise UsageError("--from is for the queues of single topics; name them with --topic")
    begins = topic_begins(output) | dict.fromkeys(topics, since)
    return {"topic_begins": {name: offset for name, offset in begins.items() if offset}}


def _check_flags(dry_run: bool, drop_old: bool, executors: bool, sealed: bool) -> None:
    if drop_old and (dry_run or executors or sealed):
        raise UsageError(
            "--drop-old builds nothing, and excludes --dry-run, --executors and --sealed; leave "
            "it out, or give it alone"
        )
    if sealed and executors:
        raise UsageError("--sealed leaves little to build; leave out --executors")


def _drop_old(roots: Iterable[Path]) -> Result:
    from reput.upkeep.rebuild import drop_old  # noqa: PLC0415

    dropped = [str(path) for root in roots for path in drop_old(root)]
    return Result({"removed": dropped}, [f"removed {', '.join(dropped) or 'nothing'}"])


def _rebuild(config: DispatcherConfig, on_executors: bool, choice: Mapping[str, Any]) -> Rebuilt:
    # a mistake is answered before Java starts
    config.open_store()[1].close()
    check_is_free(config.output)
    check_topics(choice["topics"] or (), config.store, config.output)
    with (
        render.ProgressDisplay() as display,
        started(config.spark_conf) as jvm,
        render.stopped_by_signals() as stop,
    ):
        # pyspark, numba and Arrow take a second to import: the JVM starts meanwhile
        from reput.upkeep.rebuild import rebuild as build  # noqa: PLC0415

        return build(config, stop, display, jvm, build=_builder(on_executors), **choice)


def _rebuild_all(
    configs: Sequence[DispatcherConfig], on_executors: bool, choice: Mapping[str, Any]
) -> Sequence[StoreRebuild]:
    spark_conf = configs[0].spark_conf
    with (
        render.ProgressDisplay() as display,
        render.stopped_by_signals() as stop,
        started(spark_conf) as jvm,
    ):
        from reput.sources.commitlog import CommitLogDataSource  # noqa: PLC0415
        from reput.streaming.spark.session import session  # noqa: PLC0415
        from reput.upkeep.rebuildstores import rebuild_stores  # noqa: PLC0415

        with session(spark_conf, jvm) as spark:
            spark.dataSource.register(CommitLogDataSource)
            build = partial(_builder(on_executors), spark=spark)
            at_once = spark.sparkContext.defaultParallelism
            return rebuild_stores(configs, at_once, stop, display, build=build, **choice)


def _builder(on_executors: bool) -> Callable[..., Progress]:
    from reput.streaming.dispatcher import run_dispatcher  # noqa: PLC0415
    from reput.streaming.executors import build_on_executors  # noqa: PLC0415

    return build_on_executors if on_executors else run_dispatcher


def _fields(done: Rebuilt, dry_run: bool) -> dict[str, Any]:
    comparison = done.comparison
    fields = {
        "equal": comparison.is_equal,
        **asdict(comparison),
        "kept": [str(p) for p in done.kept],
    }
    fields["seal_end"] = done.seal_end
    fields["moved"] = [asdict(queue) for queue in done.moved]
    return {**done.progress.summary(), "replaced": not dry_run, **fields}


def _result_of_all(stores: Sequence[StoreRebuild], dry_run: bool) -> Result:
    result, results = "built and compared" if dry_run else "replaced", []
    for store in stores:
        fields: dict[str, Any] = {}
        row: Sequence[str] = ("unknown", "unknown", "failed")
        if store.done is not None:
            fields = _fields(store.done, dry_run)
            counts = fields["messages"], len(store.done.comparison.differences)
            row = (*map(texts.grouped, counts), result)
        results.append((store.config.store, store.config.output, store.error, fields, row))
    are_equal = all(store.done and store.done.comparison.is_equal for store in stores)
    columns = ("store", "messages", "differences", "result")
    return severalstores.result(columns, results, exit_code=int(dry_run and not are_equal))


def _parts(done: Rebuilt, root: Path, dry_run: bool) -> Iterator[Part]:
    comparison = done.comparison
    yield from difference_records(comparison.differences[:SHOWN_DIFFERENCES], "was there", "built")
    if len(comparison.differences) > SHOWN_DIFFERENCES:
        yield f"the first {SHOWN_DIFFERENCES} of {len(comparison.differences):,}"
    yield from comparison_lines(comparison)
    for queue in done.moved[:SHOWN_DIFFERENCES]:
        yield queue.line
    if done.moved:
        more = len(done.moved) - SHOWN_DIFFERENCES
        yield f"{f'{more:,} queues more; ' if more > 0 else ''}{ADVICE}"
    messages = done.progress.summary()["messages"]
    copied = f", from {done.seal_end} on" if done.seal_end is not None else ""
    yield f"{texts.counted(messages, 'message')} dispatched{copied}"
    if dry_run:
        yield "a dry run: nothing was replaced; without --dry-run the built files are swapped in"
        return
    kept = ", ".join(path.name for path in done.kept)
    old = f"the old is kept: {kept}" if kept else "nothing was there before"
    yield f"replaced in {root}; {old}"
