"""``reput run``: runs the dispatcher."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import reput
from reput.cli import options, render, severalstores, texts
from reput.cli.clientoptions import address, client_settings, note_ready, warn_if_open
from reput.cli.kafkaoptions import KafkaStoreId, kafka_followers
from reput.cli.printer import Result, printed
from reput.cli.tableoptions import CompactEvery, Targets, delta_followers, iceberg_followers
from reput.serving.config import ServerConfig, is_loopback
from reput.store.errors import UsageError
from reput.store.follower import FollowerTarget
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.streaming.config import DispatcherConfig
from reput.streaming.measures import Measures, QueueMeasures
from reput.streaming.refusals import check_output
from reput.streaming.spark.jvm import started

if TYPE_CHECKING:
    from reput.serving.embedded import EmbeddedServer
    from reput.store.config import StoreSettings
    from reput.streaming.progress import Progress
    from reput.upkeep.shadow import Shadow

    Watcher = EmbeddedServer | Shadow


MAX_METRICS_QUEUES = 1000
"""Prometheus keeps each series in memory, and the page of this many takes 10 ms to write."""


DryRun = Annotated[
    bool,
    options.flag("Say what a start would cut, list and skip, and change nothing.", "--dry-run"),
]
MetricsPort = Annotated[
    str | None,
    options.value(
        "[HOST:]PORT",
        "Serve metrics to Prometheus at http://HOST:PORT/metrics; the host is 127.0.0.1 if not "
        "given, and port 0 takes a free one.",
        panel=options.METRICS,
    ),
]
MetricsQueues = Annotated[
    int | None,
    options.value(
        "N",
        "Serve series of single queues, too: of the first N of each store that receive messages.",
        panel=options.METRICS,
        min=1,
        max=MAX_METRICS_QUEUES,
    ),
]


@printed
@options.with_options(
    settings=options.dispatcher_fields("run"),
    flags=options.run_flags,
    delta=delta_followers,
    iceberg=iceberg_followers,
    kafka=kafka_followers,
    form=options.row_form,
    clients=client_settings,
    dispatcher=options.dispatcher_fields(None),
)
def run(
    store: severalstores.OneStore = None,
    output: options.Output = None,
    stores: severalstores.Stores = None,
    outputs: severalstores.Outputs = None,
    dry_run: DryRun = False,
    *,
    settings: dict[str, Any],
    flags: dict[str, Any],
    delta: Targets,
    iceberg: Targets,
    compact_every: CompactEvery = None,
    serve: Annotated[
        str | None,
        options.value(
            "HOST:PORT",
            "Serve the queues to RocketMQ's consumers as well, as `reput serve` does.",
            panel=options.CLIENTS,
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_queues: MetricsQueues = None,
    kafka: Callable[[RowForm], tuple[FollowerTarget, ...]],
    kafka_store_id: KafkaStoreId = None,
    form: RowForm,
    clients: dict[str, Any],
    dispatcher: dict[str, Any],
    log_level: options.LogLevel = "info",
) -> Iterator[Result]:
    """Dispatch a store's commitlog into consume queues, following it until stopped.

    SIGTERM or Ctrl-C ends it after the running batch, a second one at once; whatever ended it, the
    next start goes on from the watermark. An output keeps the settings that it was built with, so
    give `--on-queue-gap`, `--verify-crc`, `--index` and `--index-tags` only once. With `--stores`
    several brokers' stores are followed, each into an output of its own; one that fails is started
    again alone.
    """
    del log_level  # it counts from the start
    several = severalstores.several_stores(store, stores, outputs)
    new_measures = _new_measures(metrics_port, metrics_queues)
    fields = {**settings, "flags": flags, **dispatcher}
    if several is None:
        root = store or Path()
        followers = _followers(None, (delta, iceberg), kafka, form, compact_every)
        config = DispatcherConfig(root, output or root, **fields, followers=followers)
        if dry_run:
            yield _start(config)
        else:
            yield _run_one(config, serve, clients, metrics_port, new_measures)
        return
    of_one_store = ("checkpoint", "replay_from", "broker_conf")
    given = {
        "output": output, "serve": serve, "kafka_store_id": kafka_store_id,
        "dry_run": dry_run or None,
    }  # fmt: skip
    several.refuse(given | {name: fields.get(name) for name in of_one_store})
    _check_clients(serve, clients)

    def configured(root: Path, output: Path, number: int) -> DispatcherConfig:
        # all may catch up at once, each with two batches in memory
        share = {"max_bytes_per_trigger": max(1, fields["max_bytes_per_trigger"] // number)}
        followers = _followers(output.name, (delta, iceberg), kafka, form, compact_every)
        return DispatcherConfig(root, output, **fields | share, followers=followers)

    once = fields.get("once", False)
    supervised = severalstores.supervisor(several, configured, new_measures, once=once)
    metrics = _metrics(supervised.runs, metrics_port)
    severalstores.dispatch_all(supervised, fields.get("spark_conf", {}), metrics)
    yield from severalstores.results(supervised)


def _start(config: DispatcherConfig) -> Result:
    """Return what a start would do. Raises ReputError."""
    from reput.streaming.startup import look  # noqa: PLC0415

    start = look(config)
    plan = start.plan
    fields = {
        "watermark": plan.watermark.end_offset, "start": plan.start, "log_end": start.log_end,
        "cut_from": plan.truncate_to, "lost": plan.lost, "notes": plan.notes,
    }  # fmt: skip
    what = f"messages from physical offset {plan.start} up to {start.log_end} are"
    if plan.start == start.log_end:
        what = "nothing is"
    last = f"a dry run: nothing was changed; without --dry-run {what} dispatched"
    return Result(fields, [*(plan.notes or ("nothing has changed since the last run",)), last])


def _followers(
    name: str | None,
    tables: Sequence[Targets],
    kafka: Callable[[RowForm], tuple[FollowerTarget, ...]],
    form: RowForm,
    compact_every: str | None,
) -> tuple[FollowerTarget, ...]:
    """Return the followers of one of several stores, or of the only one (None). Raises
    UsageError."""
    filled = (*(target for targets in tables for target in targets(name, form)),)
    if compact_every is not None and not filled:
        raise UsageError("--compact-every needs --delta or --iceberg")
    followers = *filled, *kafka(form)
    if not followers and form != DEFAULT_FORM:
        raise UsageError(
            "--include-internal, --no-inflate-bodies and --max-inflated-bytes need --delta, "
            "--iceberg or --kafka"
        )
    return followers


def _run_one(
    config: DispatcherConfig,
    serve: str | None,
    clients: dict[str, Any],
    metrics_port: str | None,
    new_measures: Callable[[], Measures] | None,
) -> Result:
    open_store(config)
    measures = new_measures() if new_measures is not None else None
    served = _metrics(lambda: [(config, measures)] if measures is not None else [], metrics_port)
    summary = dispatch(config, _server(config, serve, clients), measures, served).summary()
    line = (
        f"{texts.counted(summary['messages'], 'message')} dispatched "
        f"({summary['duplicates']:,} were there already, "
        f"{texts.counted(summary['gaps'], 'gap')}, "
        f"{texts.counted(summary['quarantined_bytes'], 'byte')} quarantined) up to physical "
        f"offset {summary['end_offset']} in {texts.human_seconds(summary['seconds'])}"
    )
    return Result(summary, [line])


def _new_measures(listen: str | None, queues: int | None) -> Callable[[], Measures] | None:
    """Return what makes a run's measures for its metrics; None without any. Raises UsageError."""
    if listen is None:
        if queues is not None:
            raise UsageError("--metrics-queues needs --metrics-port")
        return None
    return lambda: Measures(queues=None if queues is None else QueueMeasures(queues))


@contextmanager
def _metrics(
    runs: Callable[[], Sequence[tuple[DispatcherConfig, Measures]]], listen: str | None
) -> Iterator[None]:
    """Serve the metrics of ``--metrics-port`` in a ``with`` block, if given. Raises UsageError."""
    if listen is None:
        yield
        return
    from reput.upkeep.watch.metrics import RunsCollector  # noqa: PLC0415
    from reput.upkeep.watch.metricsserver import MetricsServer  # noqa: PLC0415

    host, port = address("--metrics-port", listen, "127.0.0.1")
    with MetricsServer(host, port, RunsCollector(runs, reput.__version__)) as server:
        if not is_loopback(host):
            render.print_note(f"warning: whoever reaches {host} can read the metrics")
        shown = f"[{host}]" if ":" in host else host
        render.print_note(f"serving metrics at http://{shown}:{server.port}/metrics")
        yield


def _check_clients(listen: str | None, clients: dict[str, Any]) -> None:
    if listen is None and clients:
        raise UsageError(
            "--acl, --advertise, --insecure, --positions and --tls-... need --serve HOST:PORT"
        )


def _server(
    config: DispatcherConfig, listen: str | None, clients: dict[str, Any]
) -> EmbeddedServer | None:
    """Return the server that the options ask for, with its port bound; None without ``--serve``.
    Raises UsageError."""
    _check_clients(listen, clients)
    if listen is None:
        return None
    if config.once:
        raise UsageError("--serve is for a run that follows the log; leave --once out")
    from reput.serving.embedded import EmbeddedServer  # noqa: PLC0415
    from reput.serving.stores import BrokerIdentity  # noqa: PLC0415

    server_config = ServerConfig(*address("--serve", listen), **clients)
    identity = BrokerIdentity.of(config.given_settings())

    def ready(port: int) -> None:
        warn_if_open(server_config)
        note_ready(server_config, config.store, identity, port)

    return EmbeddedServer(server_config, identity, config.output, ready)


def open_store(config: DispatcherConfig) -> StoreSettings:
    """Return the settings of the store, once it is there; a mistake is answered before Java
    starts. Raises ReputError."""
    settings, log = config.open_store() if config.once else render.when_ready(config.open_store)
    log.close()
    check_output(config, settings)
    return settings


def dispatch(
    config: DispatcherConfig,
    watcher: Watcher | None,
    measures: Measures | None = None,
    metrics: AbstractContextManager[None] | None = None,
) -> Progress:
    """Run the dispatcher until it is stopped or has caught up, showing its progress; ``watcher``
    and ``metrics`` are entered before it starts, and the watcher is told of its watermarks."""
    with (
        render.ProgressDisplay() as display,
        render.stopped_by_signals() as stop,
        watcher or nullcontext(),
        metrics or nullcontext(),
        started(config.spark_conf) as jvm,
    ):
        # pyspark, numba and Arrow take a second to import: the JVM starts meanwhile
        from reput.streaming.dispatcher import run_dispatcher  # noqa: PLC0415

        gc.freeze()  # as at the command's start
        on_visible = watcher.end_moved if watcher is not None else lambda *_: None
        return run_dispatcher(config, stop, display, jvm, on_visible, measures)
