"""Rights that the broker's administrator gave consumer groups: ``config/subscriptionGroup.json``.

::

    {"subscriptionGroupTable":{"GROUP":{"consumeEnable":true,...},...},
     "forbiddenTable":{"GROUP":{"TOPIC":BITS,...},...},...}

The file is only read. A group that it does not name may do everything, as one that a broker creates
by itself. Source: RocketMQ 5.3.3 ``SubscriptionGroupManager``, ``SubscriptionGroupConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reput.store import configjson
from reput.store.errors import StoreError
from reput.store.files import BACKUP_SUFFIX, SUBSCRIPTION_GROUP_FILE
from reput.store.filetimes import LookTimer, Watched

_PULL_FORBIDDEN = 1 << 2
"""Bit of a topic that a group must not pull (``PermName.INDEX_PERM_READ``)."""


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The rights of one group."""

    is_consume_enabled: bool = True
    is_broadcast_enabled: bool = True
    sys_flag: int = 0
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    """Attempts after which a message is a dead letter, where its client does not say."""
    forbidden_topics: frozenset[str] = field(default_factory=frozenset)


class GroupPolicies:
    """Looks groups up, anew once a second."""

    def __init__(self, root: Path) -> None:
        """Read the file below ``root``. Raises StoreError."""
        self._path = root / SUBSCRIPTION_GROUP_FILE
        self._file = Watched(self._path, self._read)
        self._policies = self._file.value()
        self._timer = LookTimer()

    def find(self, group: str) -> GroupPolicy:
        """A group's policy."""
        if self._timer.is_due():
            self._policies = self._file.value()
        return self._policies.get(group, _ANYTHING)

    def has(self, group: str) -> bool:
        """Whether the broker knows a group, or did when it wrote the file."""
        return self.find(group) is not _ANYTHING

    def _read(self) -> Mapping[str, GroupPolicy]:
        document = configjson.read(self._path)
        if document is None:
            return {}
        try:
            if not isinstance(document, dict):
                raise ValueError("it is no object")
            groups = _table(document, "subscriptionGroupTable")
            forbidden = _table(document, "forbiddenTable")
            return {
                name: _policy(groups.get(name, {}), forbidden.get(name, {}))
                for name in {*groups, *forbidden}
            }
        except ValueError as error:
            raise StoreError(
                f"cannot use {self._path}: {error}; restore the file from {self._path.name}"
                f"{BACKUP_SUFFIX} or from a copy",
                path=self._path,
            ) from error


_ANYTHING = GroupPolicy()


def _table(document: Mapping[str, object], name: str) -> Mapping[str, Mapping[str, object]]:
    table = document.get(name) or {}
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise ValueError(f"{name} is no object of objects")
    return table


def _policy(config: Mapping[str, object], forbidden: Mapping[str, object]) -> GroupPolicy:
    return GroupPolicy(
        config.get("consumeEnable") is not False,
        config.get("consumeBroadcastEnable") is not False,
        _number(config, "groupSysFlag", 0),
        _number(config, "retryQueueNums", 1),
        _number(config, "retryMaxTimes", 16),
        frozenset(
            topic
            for topic, bits in forbidden.items()
            if type(bits) is int and bits > 0 and bits & _PULL_FORBIDDEN
        ),
    )


def _number(config: Mapping[str, object], name: str, default: int) -> int:
    value = config.get(name, default)
    return value if type(value) is int else default
