"""How clients reach a server, and where groups begin.

It is apart from the command line, because the dispatcher's process starts a server too. A field
with an ``Option`` is an option of both commands that serve, with nothing to add elsewhere.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

from reput.store.errors import UsageError


class FirstPosition(StrEnum):
    """Where a group without a committed offset begins."""

    AS_ASKED = "as-asked"
    ROCKETMQ = "rocketmq"


class Option(NamedTuple):
    """The flag of a field on the command line, and its help."""

    flag: str
    help: str
    metavar: str = ""
    """The kind of its value; empty for a flag without one."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How clients reach a server."""

    host: str
    port: int
    """The port of the name server and the first broker, and the ports of further brokers follow it;
    0 takes any free ones."""
    advertised_host: Annotated[
        str | None,
        Option(
            "--advertise",
            "The address that clients are told, if not the one they came to.",
            "HOST",
        ),
    ] = None
    first_position: Annotated[
        FirstPosition,
        Option(
            "--positions",
            "A group without offsets begins where its client asks (`as-asked`, "
            "the default), or as a broker would have it (`rocketmq`).",
            "HOW",
        ),
    ] = FirstPosition.AS_ASKED
    tls_cert: Annotated[
        Path | None, Option("--tls-cert", "Certificate chain, PEM; TLS is then accepted.", "FILE")
    ] = None
    tls_key: Annotated[Path | None, Option("--tls-key", "The certificate's key, PEM.", "FILE")] = (
        None
    )
    is_tls_required: Annotated[
        bool, Option("--tls-required", "Refuse connections without TLS.")
    ] = False

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS needs, None without a certificate.

        Raises UsageError for a certificate that cannot be used, and for options that need one.
        """
        if self.tls_cert is None:
            if self.tls_key is not None or self.is_tls_required:
                raise UsageError("`tls_key=` and `is_tls_required=` need `tls_cert=FILE`")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            if self.tls_key is None and isinstance(error, ssl.SSLError):
                raise UsageError(
                    f"{self.tls_cert} holds no certificate with its private key; give the key with "
                    "`tls_key=FILE`"
                ) from error
            raise UsageError(f"cannot use the certificate {self.tls_cert}: {error}") from error
        return context
