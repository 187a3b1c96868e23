"""``reput serve``: RocketMQ's clients consume stores without their brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli import options, render
from reput.cli.clientoptions import (
    address,
    client_settings,
    note_overlay,
    note_ready,
    warn_if_open,
)
from reput.serving.config import ServerConfig
from reput.serving.stores import BrokerIdentity, ServedStore, check_names
from reput.store.errors import UsageError
from reput.store.state.output import check_is_output
from reput.store.stores import find_roots

DEFAULT_PORT = 9876


@options.with_options(clients=client_settings)
def serve(
    store: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Root directories of stores, each of which holds `commitlog/`.",
            metavar="STORE",
            show_default=False,
        ),
    ] = None,
    stores: Annotated[
        str | None,
        options.value(
            "GLOB",
            "Serve every store whose root directory matches: `'/data/broker-*'`.",
            "--stores",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        options.value(
            "DIR",
            "Root directory of queues and index; the store itself if not given. With several "
            "stores or `--stores`, each has DIR/BROKER-NAME.",
            "--output",
            "-o",
        ),
    ] = None,
    listen: Annotated[
        str,
        options.value(
            "HOST:PORT",
            "Where clients connect; port 0 takes a free one. Each further store has the next port.",
        ),
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    *,
    clients: dict[str, Any],
    as_json: options.AsJson = False,
) -> None:
    """Serve queues of stores to RocketMQ's consumers: a name server, and a broker for each store.

    Nothing is written to the log or to queues. Committed offsets go to
    `OUTPUT/config/consumerOffset.json`. SIGTERM or Ctrl-C ends it.
    """
    del as_json  # errors and log are JSON from the start
    if bool(store) == (stores is not None):
        raise UsageError("give either STORE, which may be repeated, or --stores GLOB")
    is_cluster = stores is not None or len(store or ()) > 1
    if is_cluster and broker_conf is not None:
        raise UsageError("--broker-conf is for one store; of several each has its own broker.conf")
    host, port = address("--listen", listen)
    files = broker_conf, commitlog_file_size, consume_queue_file_size

    def opened() -> list[ServedStore]:
        roots = find_roots(stores) if stores is not None else store or []
        return _served(roots, output, is_cluster, files)

    config = ServerConfig(host, port, **clients)
    asyncio.run(_serve(config, render.when_ready(opened)))


def _served(
    roots: list[Path],
    output: Path | None,
    is_cluster: bool,
    files: tuple[Path | None, str | None, str | None],
) -> list[ServedStore]:
    """Return the stores to serve, by the options of the command. Raises ReputError."""
    brokers = []
    for root in roots:
        settings = options.store_settings(root, files[0])
        brokers.append((settings, BrokerIdentity.of(settings)))
    check_names(brokers)
    served = []
    for root, (_, identity) in zip(roots, brokers, strict=True):
        place = output / identity.name if output is not None and is_cluster else output
        check_is_output(place or root, root)
        built = options.output_settings(root, place, *files)
        served.append(ServedStore(identity, built, place or root))
    return served


async def _serve(config: ServerConfig, stores: list[ServedStore]) -> None:
    from reput.serving.server import Server  # noqa: PLC0415

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server = Server(config, len(stores))

    def ready() -> None:
        warn_if_open(config)
        for store, port in zip(stores, server.ports, strict=False):
            note_ready(config, store.settings.root, store.identity, port)
        for store, port in zip(stores, server.overlay_ports, strict=config.overlay):
            note_overlay(config, store.output, store.identity, port)

    with render.stopped_by_signals(lambda: loop.call_soon_threadsafe(stop.set)):
        await server.run(stores, stop, ready)
