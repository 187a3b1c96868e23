"""The options about clients of a server, and what is said of one when it is ready."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Annotated, Any

from reput.cli.options import CLIENTS, flag, value
from reput.cli.render import print_note
from serving.config import FirstPosition, ServerConfig
from serving.stores import BrokerIdentity
from store.errors import UsageError


def client_settings(
    advertise: Annotated[
        str | None,
        value(
            "HOST",
            "The address that clients are told, if not the one they came to.",
            panel=CLIENTS,
        ),
    ] = None,
    positions: Annotated[
        FirstPosition | None,
        value(
            "HOW",
            "A group without offsets begins where its client asks (`as-asked`, "
            "the default), or as a broker would have it (`rocketmq`).",
            panel=CLIENTS,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        value("FILE", "Certificate chain, PEM; TLS is then accepted.", panel=CLIENTS),
    ] = None,
    tls_key: Annotated[
        Path | None, value("FILE", "The certificate's key, PEM.", panel=CLIENTS)
    ] = None,
    tls_required: Annotated[
        bool,
        flag("Refuse connections without TLS.", "--tls-required", panel=CLIENTS),
    ] = False,
) -> dict[str, Any]:
    """Fields of ``ServerConfig`` that every serving command sets, as far as they are given. Raises
    UsageError."""
    given = {
        "advertised_host": advertise,
        "first_position": positions,
        "tls": _tls(tls_cert, tls_key, tls_required),
        "is_tls_required": tls_required or None,
    }  # fmt: skip
    return {field: value for field, value in given.items() if value is not None}


def warn_if_open(config: ServerConfig) -> None:
    """Say who may read what is served."""
    if not _is_loopback(config.host):
        print_note(
            f"warning: whoever reaches {config.host} can read every message; clients are not "
            "asked who they are"
        )


def note_ready(config: ServerConfig, root: Path, identity: BrokerIdentity, port: int) -> None:
    """Say where a store is served."""
    print_note(f"serving {root} as broker {identity.name} at {config.host}:{port}")


def address(option: str, text: str) -> tuple[str, int]:
    """Host and port of a text. Raises UsageError naming the option."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{option} is {text!r}; it must be HOST:PORT")
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
