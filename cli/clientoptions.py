"""The options about clients of a server, and the lines that a server prints when it is ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.options import fields_given
from reput.cli.render import print_note
from reput.serving.config import ServerConfig, is_loopback
from reput.store.errors import UsageError
from reput.store.files import OVERLAY_DIRECTORY
from reput.store.flags import flags_of

if TYPE_CHECKING:
    from reput.serving.stores import BrokerIdentity


client_settings = fields_given(ServerConfig, *flags_of(ServerConfig))
"""Returns the fields of ``ServerConfig`` that are given, for every serving command."""


def warn_if_open(config: ServerConfig) -> None:
    """Print a warning if the server can be reached from other machines, and asks for no
    credentials."""
    if config.acl is None and not is_loopback(config.host):
        print_note(
            f"warning: whoever reaches {config.host} can read every message; clients are not "
            "asked who they are"
        )


def note_ready(config: ServerConfig, root: Path, identity: BrokerIdentity, port: int) -> None:
    """Print the address at which a store is served; ``port`` is the one that is bound, also where
    the configuration has 0."""
    print_note(f"serving {root} as broker {identity.name} at {config.host}:{port}")


def note_overlay(config: ServerConfig, output: Path, identity: BrokerIdentity, port: int) -> None:
    """Print the address at which an output's overlay is served."""
    place = f"{config.host}:{port}"
    print_note(f"serving {output / OVERLAY_DIRECTORY} as broker {identity.overlay_name} at {place}")


def address(option: str, text: str, default_host: str = "") -> tuple[str, int]:
    """Return (host, port) of ``HOST:PORT``, or of ``PORT`` alone where there is a default host; an
    IPv6 address stands in brackets and loses them.

    Raises UsageError naming the option.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else default_host
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        form = "[HOST:]PORT" if default_host else "HOST:PORT"
        raise UsageError(f"{option} is {text!r}; it must be {form}")
    return host, int(port)
