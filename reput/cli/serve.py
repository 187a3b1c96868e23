"""``reput serve``: RocketMQ's clients consume a store without its broker."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from pathlib import Path
from typing import Annotated

from reput.cli import options, render
from serving.positions import FirstPosition
from serving.server import Server, ServerConfig
from store.errors import UsageError

DEFAULT_PORT = 9876


def serve(
    store: options.Store,
    output: options.ReadOutput = None,
    listen: Annotated[
        str, options.value("HOST:PORT", "Where clients connect; port 0 takes a free one.")
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    advertise: Annotated[
        str | None,
        options.value("HOST", "The address that clients are told, if not the one they came to."),
    ] = None,
    positions: Annotated[
        FirstPosition,
        options.value(
            "HOW",
            "A group without offsets begins where its client asks (`as-asked`), or as a "
            "broker would have it (`rocketmq`).",
        ),
    ] = FirstPosition.AS_ASKED,
    tls_cert: Annotated[
        Path | None, options.value("FILE", "Certificate chain, PEM; TLS is then accepted.")
    ] = None,
    tls_key: Annotated[Path | None, options.value("FILE", "The certificate's key, PEM.")] = None,
    tls_required: Annotated[
        bool, options.flag("Refuse connections without TLS.", "--tls-required")
    ] = False,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve a store's queues to RocketMQ's consumers: name server and broker on one port.

    Nothing is written to the log or to queues. Committed offsets go to
    `OUTPUT/config/consumerOffset.json`. SIGTERM or Ctrl-C ends it.
    """
    del as_json  # errors and log are JSON from the start
    host, port = _address(listen)
    config = ServerConfig(
        settings=options.output_settings(
            store, output, broker_conf, commitlog_file_size, consume_queue_file_size
        ),
        output=output or store,
        host=host,
        port=port,
        advertised_host=advertise,
        first_position=positions,
        tls=_tls(tls_cert, tls_key, tls_required),
        is_tls_required=tls_required,
    )
    asyncio.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server = Server(config)

    def ready() -> None:
        if not _is_loopback(config.host):
            render.print_note(
                f"warning: whoever reaches {config.host} can read every message; clients are not "
                "asked who they are"
            )
        render.print_note(f"serving {config.settings.root} at {config.host}:{server.port}")

    with render.stopped_by_signals(lambda: loop.call_soon_threadsafe(stop.set)):
        await server.run(stop, ready)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen is {text!r}; it must be HOST:PORT")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(cert: Path | None, key: Path | None, is_required: bool) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None or is_required:
            raise UsageError("--tls-key and --tls-required need --tls-cert FILE")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the certificate {cert}: {error}") from error
    return context
