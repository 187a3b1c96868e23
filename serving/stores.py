"""The stores that one server serves, each as a broker with a name of its own.

RocketMQ's clients merge routes by broker name and tell queues apart by it, so two stores of one
name would be taken for one broker; that is refused before anything is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from serving.arrivals import ToldArrivals
from store.config import StoreSettings, broker_name, read_properties
from store.errors import UsageError
from store.queue.consumequeue import topic_directory
from store.state.consumeroffset import check_no_broker

DEFAULT_CLUSTER_NAME = "DefaultCluster"


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """How clients know a store."""

    name: str
    """A plain path component (``store.config.broker_name``)."""
    cluster: str

    @classmethod
    def of(cls, settings: StoreSettings) -> Self:
        """The identity that a store states. Raises UsageError if its name is none."""
        _, values = read_properties(settings.root, settings.property_file)
        name = broker_name(settings.root, values)
        if topic_directory(name.encode(errors="surrogateescape")) is None:
            raise UsageError(
                f"{settings.root} would be the broker {name!r}, which is no plain name; state "
                "brokerName in its broker.conf"
            )
        return cls(name, values.get("brokerClusterName") or DEFAULT_CLUSTER_NAME)


@dataclass(frozen=True, slots=True)
class ServedStore:
    """One store, its queues, and where the positions of its consumers are kept."""

    identity: BrokerIdentity
    settings: StoreSettings
    output: Path
    """Root of the queues; positions are written below it."""
    arrivals: ToldArrivals | None = None
    """Tells of new messages, if a dispatcher in this process writes the queues and so holds the
    output's lock; otherwise the watermark is polled."""

    def check_not_in_use(self) -> None:
        """Raises OwnershipError where positions would be kept in a running broker's store."""
        # a look at the lock would drop it where this process holds it
        if self.arrivals is None:
            check_no_broker(self.output, self.settings.root)


def check_names(found: Sequence[tuple[StoreSettings, BrokerIdentity]]) -> None:
    """Raises UsageError where two stores have one name."""
    roots: dict[str, Path] = {}
    for settings, identity in found:
        other = roots.setdefault(identity.name, settings.root)
        if other is not settings.root:
            raise UsageError(
                f"{other} and {settings.root} are both the broker {identity.name}; state another "
                "brokerName in the broker.conf of one, or pass a symbolic link of another name"
            )
