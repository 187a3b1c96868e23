"""One store served as one broker, read-only towards the store.

It assembles the parts that answer requests, and holds what they share: the view of the store, the
committed offsets, and the list of damaged records. It writes only below the output.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from reput.readers.getmessage import PullLimits
from reput.readers.messagestore import MessageStore
from reput.serving import requests
from reput.serving.admin import Admin
from reput.serving.arrivals import PolledArrivals
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.config import FirstPosition
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import Frame
from reput.serving.grouppolicy import GroupPolicies
from reput.serving.groups import Groups
from reput.serving.holds import Holds
from reput.serving.inventory import report
from reput.serving.lockfile import LockFile
from reput.serving.locks import Locks
from reput.serving.offsets import ConsumerOffsets
from reput.serving.offsetwriter import OffsetWriter
from reput.serving.pulling import Pulling
from reput.serving.queries import Queries
from reput.serving.queues import ServedQueues
from reput.serving.statistics import Statistics
from reput.serving.stores import ServedStore
from reput.serving.topics import Topics
from reput.store.config import StoreSettings
from reput.store.errors import OutputError
from reput.store.files import SERVE_DIRECTORY
from reput.store.log.systemtopics import CARRYING_TOPICS
from reput.store.state.ledger import Ledger, damaged_record

if TYPE_CHECKING:
    from reput.overlay.overlay import Overlay  # brings the dispatcher along
    from reput.serving.transactions import MayPublish, Transactions

logger = logging.getLogger("reput")

EXPIRY_CHECK_SECONDS = 10.0
MOST_FAILING = 10_000
"""Groups with failing listeners that are remembered."""


class Broker:
    """A store, and the committed offsets of its consumers in an output."""

    def __init__(
        self,
        served: ServedStore,
        first_position: FirstPosition,
        port: int,
        holds: Holds,
        overlay: Overlay | None = None,
        base: Broker | None = None,
    ) -> None:
        """Open the store and the offsets. ``overlay`` takes what consuming writes; ``base`` is the
        broker whose overlay this one serves. Raises UsageError, OwnershipError, OutputError."""
        self._served = served
        self._has_overlay = overlay is not None
        self.identity = served.identity
        self.port = port
        self.twin: Broker | None = base
        """The broker of the base for that of its overlay, and the other way round."""
        if base is not None:
            base.twin = self
        settings, output = served.settings, served.output
        root = settings.root
        self._opened = ExitStack()
        self.store = MessageStore(root, output=output, settings=settings, limits=_limits(settings))
        self.store.load_kernels()
        known_groups = self._known_groups if overlay is None or base is not None else set
        is_overlay = base is not None
        self.policies: GroupPolicies = GroupPolicies(root) if base is None else base.policies
        policies = self.policies
        self.topics = Topics(
            root, self.store, known_groups,
            (lambda group: policies.find(group).retry_queue_nums) if is_overlay else None,
            overlay.owed_topics if overlay is not None and is_overlay else frozenset(),
        )  # fmt: skip
        self.locks = Locks()
        self._groups = groups = Groups(self._member_left)
        queues = ServedQueues(self.store, self.topics)
        self._writer = OffsetWriter(output, root)
        self._lock_file = LockFile(output, self.locks)
        self.offsets: ConsumerOffsets = ConsumerOffsets(
            self._writer,
            queues,
            groups,
            first_position,
            base=None if base is None else base.offsets,
        )
        name = served.identity.name
        self._pulling = Pulling(
            self.store, self.topics, groups, self.offsets, policies, self._list_damaged,
            served.arrivals or self._opened.enter_context(closing(PolledArrivals(output))),
            holds,
        )  # fmt: skip
        self._statistics = Statistics(name, self.topics, queues, groups, self.offsets)
        self._queues = queues
        self._queries = Queries(self.store, queues, groups)
        self._admin = Admin(
            name, self.store, queues, groups, self.offsets, self._pulling,
            lambda group: group in self._known_groups() or policies.has(group),
        )  # fmt: skip
        self._writing: dict[int, Handler] = {
            RequestCode.CONSUMER_SEND_MSG_BACK: self._refuse_to_write
        }
        self._transactions: Transactions | None = None
        """The base's open ones; None without an overlay, and in one."""
        if overlay is not None:
            self._writing |= self._writing_to(overlay, is_overlay=is_overlay)
        self._failing: set[str] = set()
        """Groups whose listeners have failed."""
        self._ledger = Ledger(output / SERVE_DIRECTORY)

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            **self._groups.handlers,
            **self._pulling.handlers,
            **self.offsets.handlers,
            **self.locks.handlers,
            **self._queues.handlers,
            **self._statistics.handlers,
            **self._queries.handlers,
            **self._admin.handlers,
            **self._writing,
        }

    def _writing_to(self, overlay: Overlay, *, is_overlay: bool) -> dict[int, Handler]:
        """The requests whose messages go to an overlay."""
        # most servers have none, and start without these
        from reput.serving.sendbacks import SendBacks  # noqa: PLC0415
        from reput.serving.sends import Sends  # noqa: PLC0415
        from reput.serving.transactions import Transactions  # noqa: PLC0415

        policies = self.policies
        sent_back = SendBacks(self.store, overlay, self._groups, policies, is_base=not is_overlay)
        if not is_overlay:
            name = self.identity.name
            self._transactions = Transactions(name, overlay.transactions, self._groups)
            return {**sent_back.handlers, **self._transactions.handlers}
        return {**sent_back.handlers, **Sends(overlay, policies, self._holds_lock).handlers}

    def _holds_lock(self, group: str) -> bool:
        """Whether a member of a group holds a lock here or at the twin."""
        return self.locks.holds(group) or (self.twin is not None and self.twin.locks.holds(group))

    def topic_at(self, physical_offset: int) -> str | None:
        """The topic of the record at a physical offset; None if there is no record. A record that
        waits in a topic of RocketMQ's own has the topic for which it waits."""
        self.store.refresh()
        message = self.store.log.message_at(physical_offset)
        if message is None:
            return None
        is_own = message.topic not in CARRYING_TOPICS
        return message.topic if is_own else message.properties.get("REAL_TOPIC", message.topic)

    def protect_checks(self, may_publish: MayPublish) -> None:
        """Have only those asked about a transaction who may publish its topic."""
        if self._transactions is not None:
            self._transactions.may_publish = may_publish

    def rules_changed(self) -> None:
        """Have waiting pulls checked by new access rules."""
        self._pulling.end_waiting()

    def _known_groups(self) -> set[str]:
        """The groups that have members or committed offsets."""
        return {*self._groups.names(), *self.offsets.groups()}

    def _member_left(self, group: str, client_id: str, said: bool) -> None:
        self.locks.owner_left(group, client_id, said=said)

    def _is_member(self, name: str, client_id: str) -> bool:
        group = self._groups.get(name)
        return group is not None and client_id in group.members

    def _list_damaged(self, physical_offset: int, topic: str) -> None:
        """Log a record that a pull skips, and add it to the quarantine, once."""
        entry = damaged_record(physical_offset, topic)
        if self._ledger.add(entry):
            logger.error(
                "what is lost or damaged at physical offset %d, of topic %s, is skipped; see reput "
                "inspect record", physical_offset, entry.topic,
            )  # fmt: skip
            try:
                self._ledger.sync()
            except OutputError as error:
                logger.error("damaged records cannot be listed now: %s", error)

    def _refuse_to_write(self, _connection: Connection, request: Frame) -> Frame | None:
        """Refuse a message that a listener could not consume, and log it once for each group."""
        group = requests.group(request, "group")
        if group not in self._failing and len(self._failing) < MOST_FAILING:
            self._failing.add(group)
            logger.warning(
                "broker %s: a listener of group %s has failed and sends its message back, at "
                "physical offset %s, which is refused: the group commits nothing beyond it in its "
                "queue until the listener consumes it, and a member that starts again begins with "
                "it; logged once for each group",
                self.identity.name, group, request.ext.get("offset", "unknown"),
            )  # fmt: skip
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "reput serves this store read-only: the client offers the message again by itself",
        )

    def connection_closed(self, connection: Connection) -> None:
        """Forget what belongs to a lost connection."""
        self._pulling.connection_closed(connection)
        self.offsets.connection_closed(connection)
        self._groups.connection_closed(connection)
        self.locks.connection_closed(connection, self._is_member)
        if self._transactions is not None:
            self._transactions.connection_closed(connection)

    async def work(self) -> None:
        """Wake pulls, write offsets and expire members, until cancelled. Raises SyncError."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pulling.watch())
            tasks.create_task(self._writer.append())
            tasks.create_task(self._writer.sync())
            tasks.create_task(self._writer.replace())
            tasks.create_task(self._lock_file.keep())
            tasks.create_task(self._expire())
            tasks.create_task(report(self._served, has_overlay=self._has_overlay))
            if self._transactions is not None:
                tasks.create_task(self._transactions.ask())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            self._groups.expire()

    async def close(self) -> None:
        """Write the locks and offsets, and close the store."""
        try:
            self._lock_file.close()
            await self._writer.close()
        finally:
            self._opened.close()
            self.store.close()


def _limits(settings: StoreSettings) -> PullLimits:
    """Return the store's limits of a pull, with those for messages in memory for the whole log.

    With RocketMQ's lower limits for messages on disk, catching up takes four times the round trips.
    """
    limits = PullLimits.of(settings)
    return replace(
        limits,
        max_transfer_bytes_on_disk=limits.max_transfer_bytes_in_memory,
        max_transfer_count_on_disk=limits.max_transfer_count_in_memory,
    )
