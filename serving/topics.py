"""The topics of a store as a broker would describe them, read-only for every client.

A topic is known if the broker's ``config/topics.json`` declares it or if it has queues. Clients
pull exactly the queues 0 to readQueueNums - 1, so a queue that the declaration lacks is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from reput.readers.messagestore import MessageStore
from reput.store.files import TOPICS_FILE
from reput.store.filetimes import LookTimer, Watched
from reput.store.log.record import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from reput.store.names import is_group, is_topic
from reput.store.queue.consumequeue import MAX_TOPIC_BYTES
from reput.store.queue.queuetype import read_topic_table

RETRY_PREFIX, DLQ_PREFIX = RETRY_GROUP_TOPIC_PREFIX.decode(), DLQ_GROUP_TOPIC_PREFIX.decode()
CONSUMERS_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)
"""Names of the topics that consumers have begin so: a base and its overlay may both have them."""
PERM_READ = 4
PERM_WRITE = 2


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic."""

    name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ
    """PERM_READ, or 0 for a topic that its broker lets nobody read; in an overlay also
    PERM_WRITE."""
    is_ordered: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] | None = None


class Topics:
    """Looks topics up, anew once a second."""

    def __init__(
        self,
        root: Path,
        store: MessageStore,
        known_groups: Callable[[], Set[str]],
        retry_queues: Callable[[str], int] | None = None,
        owed: Set[str] = frozenset(),
    ) -> None:
        """Each of ``known_groups`` has a retry topic, which may be empty. In an overlay every group
        has one, with as many queues as ``retry_queues`` says, to which clients may send: they ask
        for its route before anything is known of them. Messages of the ``owed`` topics come later,
        to queue 0: clients, who look at routes every 30 s, know them from the start."""
        self._store = store
        self._table = Watched(root / TOPICS_FILE, lambda: read_topic_table(root))
        self._known_groups = known_groups
        self._retry_queues = retry_queues
        self._owed = owed
        self._declared: Mapping[str, object] = {}
        self._configs: dict[str, TopicConfig | None] = {}
        self._timer = LookTimer()

    def find(self, name: str) -> TopicConfig | None:
        """A topic; None if it is unknown."""
        self._refresh()
        if name not in self._configs:
            if len(name) > MAX_TOPIC_BYTES:
                # nothing that long is kept
                return None
            self._configs[name] = self._make(name)
        return self._configs[name]

    def owes(self, name: str) -> bool:
        """Whether messages of a topic come later."""
        return name in self._owed

    def names(self) -> list[str]:
        """All topics, sorted; mqadmin finds the groups by their retry topics."""
        self._refresh()
        retries = (f"{RETRY_PREFIX}{group}" for group in self._known_groups())
        owed_or_retries = filter(is_topic, (*self._owed, *retries))
        return sorted({*self._declared, *self._store.topics(), *owed_or_retries})

    def _refresh(self) -> None:
        if self._timer.is_due():
            self._configs.clear()
            self._declared = self._table.value()

    def _make(self, name: str) -> TopicConfig | None:
        group = name.removeprefix(RETRY_PREFIX)
        is_retry = group != name
        ids = self._store.queue_ids(name)
        count = ids[-1] + 1 if ids else 0
        if self._retry_queues is not None and is_retry and is_group(group):
            count = max(count, self._retry_queues(group), 1)
            return TopicConfig(name, count, count, PERM_READ | PERM_WRITE)
        declared = self._declared.get(name)
        if isinstance(declared, dict):
            # in an overlay the file is for a broker, which would fill more queues
            least = None if self._retry_queues is None else 1
            return TopicConfig(
                name,
                max(count, least or _number(declared, "readQueueNums", 0)),
                max(count, least or _number(declared, "writeQueueNums", 0)),
                _number(declared, "perm", PERM_READ) & PERM_READ,
                declared.get("order") is True,
                str(declared.get("topicFilterType", "SINGLE_TAG")),
                _number(declared, "topicSysFlag", 0),
                declared.get("attributes"),
            )
        if count:
            return TopicConfig(name, count, count)
        if name in self._owed or (is_retry and group in self._known_groups()):
            return TopicConfig(name, 1, 1)
        return None


def _number(declared: Mapping[str, object], name: str, default: int) -> int:
    value = declared.get(name, default)
    return value if type(value) is int else default
