"""Accounts of ACL 1.0 (``plain_acl.yml``) and of ACL 2.0 (users and policies), and what they may.

Source: RocketMQ 5.3.2 ``PlainPermissionManager``, ``PlainPermissionChecker``; 5.5.0
``AclAuthorizationHandler``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reput.readers.trace import TRACE_TOPIC
from reput.serving.acl.addresses import WhiteAddresses
from reput.serving.acl.needs import Action, Kind, Need

Permission = frozenset[Action]
"""PUB, SUB, both or none."""
DENY: Permission = frozenset()


class Account(Protocol):
    """Whoever signs with one access key."""

    @property
    def secret(self) -> str:
        """The key of its signatures."""

    @property
    def is_admin(self) -> bool:
        """Whether it may have everything."""

    def is_white(self, host: str) -> bool:
        """Whether a client at this address has all its rights without a signature."""

    def allows(self, need: Need, host: str) -> bool:
        """Whether it has a right, from a client at this address."""


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """An account of ``plain_acl.yml``."""

    secret: str = field(repr=False)
    is_admin: bool
    white: WhiteAddresses
    default_topic: Permission
    default_group: Permission
    topics: Mapping[str, Permission]
    groups: Mapping[str, Permission]

    def is_white(self, host: str) -> bool:
        """Whether a client at this address has all its rights without a signature."""
        return self.white.has(host)

    def allows(self, need: Need, host: str) -> bool:
        """Whether it has a right, from any address; everybody may send traces."""
        del host
        if need.kind is Kind.TOPIC:
            if need.name == TRACE_TOPIC and Action.PUB in need.actions:
                return True
            permission = self.topics.get(need.name, self.default_topic)
        elif need.kind is Kind.GROUP:
            permission = self.groups.get(need.name, self.default_group)
        else:
            permission = DENY
        return not permission.isdisjoint(need.actions)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a policy of ACL 2.0."""

    kind: Kind | None
    """None for topics, groups and all else (``*``)."""
    name: str
    is_prefix: bool
    """Whether names that begin so are meant; with an empty name, every one."""
    actions: frozenset[Action]
    sources: Sequence[Network]
    """Addresses of clients; none mean all."""
    is_allowed: bool

    def matches(self, need: Need, host: str) -> bool:
        """Whether it decides about a right, from a client at this address."""
        if self.kind is not None and self.kind is not need.kind:
            return False
        is_named = need.name.startswith(self.name) if self.is_prefix else need.name == self.name
        if not is_named or self.actions.isdisjoint(need.actions):
            return False
        return not self.sources or _is_in(host, self.sources)

    @property
    def rank(self) -> tuple[bool, bool, int, bool]:
        """The entry with the least one decides: a name before a prefix, a longer prefix before a
        shorter one, a refusal before a permission."""
        return self.kind is None, self.is_prefix, -len(self.name), self.is_allowed


@dataclass(frozen=True, slots=True)
class PolicyAccount:
    """A user of ACL 2.0."""

    secret: str = field(repr=False)
    is_admin: bool
    custom: list[Entry] = field(default_factory=list)
    default: list[Entry] = field(default_factory=list)
    """These decide where no custom entry does."""

    def is_white(self, host: str) -> bool:
        """ACL 2.0 asks every client for its signature."""
        del host
        return False

    def allows(self, need: Need, host: str) -> bool:
        """Whether it has a right, from a client at this address."""
        if need.kind is Kind.SERVER:
            return False
        for entries in (self.custom, self.default):
            if matching := [entry for entry in entries if entry.matches(need, host)]:
                return min(matching, key=lambda entry: entry.rank).is_allowed
        return False


def _is_in(host: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return any(address in network for network in networks)
