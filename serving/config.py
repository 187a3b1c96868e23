"""How clients reach a server, and where groups begin.

It is apart from the command line, because the dispatcher's process starts a server too.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum


class FirstPosition(StrEnum):
    """Where a group without a committed offset begins."""

    AS_ASKED = "as-asked"
    ROCKETMQ = "rocketmq"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How clients reach a server."""

    host: str
    port: int
    """The port of the name server and the first broker, and the ports of further brokers follow it;
    0 takes any free ones."""
    advertised_host: str | None = None
    """The address that clients are told; None for the one at which they reached us."""
    first_position: FirstPosition = FirstPosition.AS_ASKED
    tls: ssl.SSLContext | None = None
    is_tls_required: bool = False
