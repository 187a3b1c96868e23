"""The stores that one server serves, each as a broker with a name of its own.

RocketMQ's clients merge routes by broker name and distinguish queues by it, so they would take two
stores of one name for one broker. Such stores are refused before anything is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from reput.serving.arrivals import NotifiedArrivals
from reput.store.config import StoreSettings, broker_name, read_properties
from reput.store.errors import UsageError
from reput.store.queue.consumequeue import topic_directory
from reput.store.state.consumeroffset import check_no_broker

DEFAULT_CLUSTER_NAME = "DefaultCluster"


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """How clients know a store."""

    name: str
    """A plain path component (``store.config.broker_name``)."""
    cluster: str

    @property
    def overlay_name(self) -> str:
        """The name by which clients know its overlay."""
        return f"{self.name}-reput"

    @classmethod
    def of(cls, settings: StoreSettings) -> Self:
        """Return the identity that a store's settings state. Raises UsageError for a name that is
        no plain path component."""
        properties = read_properties(settings.root, settings.property_file)
        name = broker_name(settings.root, properties)
        if topic_directory(name.encode(errors="surrogateescape")) is None:
            raise UsageError(
                f"{settings.root} would be the broker {name!r}, which is no plain name; state "
                "brokerName in its broker.conf"
            )
        return cls(name, properties.text("brokerClusterName") or DEFAULT_CLUSTER_NAME)


@dataclass(frozen=True, slots=True)
class ServedStore:
    """One store, and the output that has its queues and the offsets of its consumers."""

    identity: BrokerIdentity
    settings: StoreSettings
    output: Path
    """Root of the queues; committed offsets are written below it."""
    arrivals: NotifiedArrivals | None = None
    """Reports new messages, if a dispatcher in this process writes the queues and so holds the
    output's lock; otherwise the server watches the watermark itself."""

    def check_not_in_use(self) -> None:
        """Raise OwnershipError if offsets would be written into a running broker's store."""
        # closing the lock's file would release it if this process holds it
        if self.arrivals is None:
            check_no_broker(self.output, self.settings.root)


def check_names(stores: Sequence[tuple[StoreSettings, BrokerIdentity]]) -> None:
    """Raise UsageError if two stores have one name."""
    roots: dict[str, Path] = {}
    for settings, identity in stores:
        other = roots.setdefault(identity.name, settings.root)
        if other is not settings.root:
            raise UsageError(
                f"{other} and {settings.root} are both the broker {identity.name}; state another "
                "brokerName in the broker.conf of one, or pass a symbolic link of another name"
            )
