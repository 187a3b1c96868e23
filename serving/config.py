"""How clients reach a server, and where groups begin.

It is apart from the command line, because the dispatcher's process starts a server too. A field
that is ``flagged`` is an option of both commands that serve, with nothing to add elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reput.store.errors import UsageError
from reput.store.flags import CLIENTS_PANEL, flagged

_ANY_HOST = ("0.0.0.0", "::")


class FirstPosition(StrEnum):
    """Where a group without a committed offset begins."""

    AS_ASKED = "as-asked"
    ROCKETMQ = "rocketmq"


class ClientAuth(StrEnum):
    """Whether clients need a certificate, as RocketMQ's tls.server.need.client.auth has it."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


_VERIFICATION = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How clients reach a server."""

    host: str
    port: int
    """The port of the name server and the first broker, and the ports of further brokers follow it;
    0 takes any free ones."""
    advertised_host: str | None = flagged(
        None, "--advertise", "The address that clients are told, if not the one they came to.",
        CLIENTS_PANEL, "HOST",
    )  # fmt: skip
    first_position: FirstPosition = flagged(
        FirstPosition.AS_ASKED, "--positions",
        "A group without offsets begins where its client asks (`as-asked`, the default), or as a "
        "broker would have it (`rocketmq`).",
        CLIENTS_PANEL, "HOW",
    )  # fmt: skip
    overlay: bool = flagged(
        False, "--overlay",
        "Write what consuming writes to `OUTPUT/overlay`: messages that listeners could not "
        "consume come back, or are dead letters, and delayed messages of a stopped broker are "
        "delivered when due. It is served as another broker, `NAME-reput`.",
        CLIENTS_PANEL,
    )  # fmt: skip
    tls_cert: Path | None = flagged(
        None, "--tls-cert", "Certificate chain, PEM; TLS is then accepted.", CLIENTS_PANEL, "FILE"
    )
    tls_key: Path | None = flagged(
        None, "--tls-key", "The certificate's key, PEM.", CLIENTS_PANEL, "FILE"
    )
    is_tls_required: bool = flagged(
        False, "--tls-required", "Refuse connections without TLS.", CLIENTS_PANEL
    )
    tls_client_ca: Path | None = flagged(
        None, "--tls-client-ca",
        "Certificates of authorities, PEM; clients then need one that these have signed.",
        CLIENTS_PANEL, "FILE",
    )  # fmt: skip
    tls_client_auth: ClientAuth | None = flagged(
        None, "--tls-client-auth",
        "With `--tls-client-ca`: clients need a certificate (`require`, the default), or one that "
        "they show must be right (`optional`), or none is asked for (`none`).",
        CLIENTS_PANEL, "HOW",
    )  # fmt: skip
    acl: Path | None = flagged(
        None, "--acl",
        "Access rules, for which clients must sign: RocketMQ's `plain_acl.yml`, a folder with it "
        "and `acl/`, or a file of users and policies; read again when they change.",
        CLIENTS_PANEL, "PATH",
    )  # fmt: skip
    is_insecure: bool = flagged(
        False, "--insecure",
        "Listen beyond this machine without `--acl`: whoever reaches the port can read every "
        "message.",
        CLIENTS_PANEL,
    )  # fmt: skip

    @property
    def refuses_plain(self) -> bool:
        """Whether a client without TLS is refused; it could not show a certificate."""
        needs_certificate = self.tls_client_auth in (None, ClientAuth.REQUIRE)
        return self.is_tls_required or (self.tls_client_ca is not None and needs_certificate)

    def check_protection(self) -> None:
        """Raise UsageError if other machines reach the server, which asks nobody who they are, and
        this is not said in words; or if both is said."""
        if self.acl is not None and self.is_insecure:
            raise UsageError("give either `acl=PATH` or `is_insecure=`")
        if self.acl is None and not self.is_insecure and not is_loopback(self.host):
            raise UsageError(
                f"whoever reaches {self.host} could read every message: let clients sign, with "
                "`acl=PATH`, or allow it, with `is_insecure=`"
            )

    def own_host(self) -> str:
        """Return the address that stands in records of an overlay, as a number. Raises UsageError
        where the name that clients are told has none."""
        name = self.advertised_host or self.host
        if name in _ANY_HOST:
            name = socket.gethostname()
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise UsageError(
                f"{name} has no address to be named in messages; give one (`advertised_host=`)"
            ) from error

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS needs, None without a certificate.

        Raises UsageError for a certificate that cannot be used, and for options that need one.
        """
        if self.tls_client_ca is None and self.tls_client_auth is not None:
            raise UsageError("`tls_client_auth=` needs `tls_client_ca=FILE`")
        if self.tls_cert is None:
            if self.tls_key is not None or self.is_tls_required or self.tls_client_ca is not None:
                raise UsageError(
                    "`tls_key=`, `is_tls_required=` and `tls_client_ca=` need `tls_cert=FILE`"
                )
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
        if self.tls_client_ca is not None:
            try:
                context.load_verify_locations(self.tls_client_ca)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"cannot use the authorities' certificates {self.tls_client_ca}: {error}"
                ) from error
            context.verify_mode = _VERIFICATION[self.tls_client_auth or ClientAuth.REQUIRE]
        return context


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
