"""Pulls: records as they are in the log, and long polling.

A pull that finds nothing new may wait. It is registered first and then looks once more, so that it
misses no message that arrives in between. It ends when a message arrives that its filter takes, at
its deadline, or with its connection. As RocketMQ does, an offset that the queue does not have is
corrected, but only once the whole log is dispatched: until then the queue's end is not known, and
the pull waits. Source: RocketMQ 5.3.3 ``PullMessageProcessor``, ``PullRequestHoldService``,
``DefaultPullMessageResultHandler``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from reput.readers.getmessage import GetMessageStatus
from reput.readers.getranges import GetRangesResult
from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import OffsetChange
from reput.serving import requests
from reput.serving.admission import Admission, Admitted
from reput.serving.arrivals import Arrivals
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import RESPONSE, Codec, Encoded, Frame, HeadTemplate
from reput.serving.grouppolicy import GroupPolicies
from reput.serving.groups import Groups
from reput.serving.holds import Holds
from reput.serving.offsets import ConsumerOffsets
from reput.serving.queues import QueueName
from reput.serving.topics import Topics
from reput.store.errors import ReputError, error_text

logger = logging.getLogger("reput")

MAX_BODY_BYTES = 8 << 20
"""Limit of the records in one answer, unless the first one is larger; clients refuse frames of
16 MiB."""
RETRY_SECONDS = 0.1
"""Time between attempts to read the store's state while that fails."""
WOKEN_AT_ONCE = 64
"""Pulls to wake before other connections have their turn."""
LOOKS_AT_ONCE = 8
"""Windows of units that a waiting pull's filter looks through before it is answered."""

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)


_Key = TypeVar("_Key")


def response_code(status: GetMessageStatus, offset: int) -> ResponseCode:
    """The code of a pull's status."""
    if status in _EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]


@dataclass(slots=True, eq=False)
class _Pull:
    """One pull, which may wait."""

    connection: Connection
    request: Frame
    asked: Admitted
    offset: int
    look_at: int
    """Queue offset of the next unit to look at while it waits."""
    deadline: asyncio.TimerHandle | None = None
    queue_end: int = -1
    """The queue's max offset at the last look, which found nothing new; -1 before."""

    @property
    def queue(self) -> QueueName:
        """The queue that it reads."""
        return self.asked.key.topic, self.asked.queue_id


_Pulls = dict[_Pull, None]
"""Pulls in the order in which they came, which is the order of their answers."""


class Pulling:
    """Answers the pulls from one broker's queues."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        policies: GroupPolicies,
        on_damage: Callable[[int, str], None],
        arrivals: Arrivals,
        holds: Holds,
    ) -> None:
        """``on_damage`` is called with the physical offset of each damaged record, and its
        topic."""
        self._store = store
        self._admission = Admission(topics, groups, policies)
        self._offsets = offsets
        self._on_damage = on_damage
        self._arrivals = arrivals
        self._holds = holds
        self._pulls: dict[QueueName, _Pulls] = {}
        self._pulls_of: dict[Connection, _Pulls] = {}
        self._unsettled: _Pulls = {}
        """Waiting pulls that may end although their queues do not grow: those from an offset beyond
        the queue's end, until the whole log is dispatched, and those for whose answer there was no
        memory."""
        self._is_holding = asyncio.Event()

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, request: Frame) -> Frame | Encoded | None:
        """Answer a pull, or hold it."""
        if connection.is_memory_spent:
            raise Refused(ResponseCode.SYSTEM_BUSY, "too many answers wait for slow clients")
        asked = self._admission.admit(connection, request)
        offset = requests.number(request, "queueOffset")
        pull = _Pull(connection, request, asked, offset, offset)
        reset_offset = self._offsets.reset_at_pull(connection, asked.key, asked.queue_id)
        if reset_offset is not None:
            return self._moved(pull, reset_offset)
        if asked.is_commit:
            commit = requests.number(request, "commitOffset")
            self._offsets.commit(connection, asked.key, asked.queue_id, commit)
        result = self._look(pull, offset)
        if result.status is GetMessageStatus.FOUND:
            return self._answer(pull, result)
        if response_code(result.status, offset) is ResponseCode.PULL_RETRY_IMMEDIATELY:
            return self._answer(pull, result)
        if asked.suspend_seconds > 0:
            self._hold(pull)
            try:
                self._store.refresh()
                return self._woken(pull)
            except (ReputError, OSError):
                self._release(pull)
                raise
        self._store.refresh()
        return self._answer(pull, self._look(pull, offset))

    def _look(self, pull: _Pull, offset: int) -> GetRangesResult:
        asked = pull.asked
        result = self._store.queue(asked.key.topic, asked.queue_id).get_ranges(
            offset, asked.max_count, max_bytes=MAX_BODY_BYTES, message_filter=asked.message_filter
        )
        for damaged in result.damaged:
            self._on_damage(damaged, asked.key.topic)
        return result

    def _answer(self, pull: _Pull, result: GetRangesResult) -> Frame | Encoded:
        asked, request = pull.asked, pull.request
        next_offset, low, high = result.next_begin_offset, result.min_offset, result.max_offset
        if result.status is GetMessageStatus.FOUND and request.codec is Codec.JSON:
            self._offsets.note_pull(asked.key, asked.queue_id, next_offset)
            template = _found_template(asked.sys_flags)
            return template.encode(result.data, request.opaque, next_offset, low, high)
        code = response_code(result.status, pull.offset)
        if code is ResponseCode.PULL_OFFSET_MOVED and not self._is_certain(result):
            code, next_offset = ResponseCode.PULL_NOT_FOUND, pull.offset
        self._offsets.note_pull(asked.key, asked.queue_id, next_offset)
        ext = _ext(asked.sys_flags, next_offset, low, high)
        return request.answer(code, result.status.value, ext, result.data)

    def _moved(self, pull: _Pull, offset: int) -> Frame:
        """Return the answer that sends a client to the offset to which its group was reset."""
        try:
            bounds = self._store.queue(*pull.queue).bounds()
        except (ReputError, OSError):
            # it is told once, and goes there whatever the bounds are
            bounds = offset, offset
        ext = _ext(pull.asked.sys_flags, offset, *bounds)
        return pull.request.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext)

    def end_reset(self, changes: Iterable[OffsetChange]) -> None:
        """Answer the waiting pulls of queues whose group was just reset."""
        for change in changes:
            if change.after is None:
                continue
            for pull in list(self._pulls.get((change.topic, change.queue_id), ())):
                key = pull.asked.key
                if key.group == change.group:
                    self._release(pull)
                    self._offsets.reset_at_pull(pull.connection, key, change.queue_id)
                    pull.connection.send(self._moved(pull, change.after))

    def end_waiting(self) -> None:
        """Answer all waiting pulls without a message: their clients pull again at once, and are
        checked by the access rules of now."""
        for pull in [pull for pulls in self._pulls.values() for pull in pulls]:
            self._release(pull)
            try:
                bounds = self._store.queue(*pull.queue).bounds()
                ext = _ext(pull.asked.sys_flags, pull.offset, *bounds)
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
                answer = pull.request.answer(code, "RULES_CHANGED", ext)
            except (ReputError, OSError) as error:
                answer = pull.request.answer(ResponseCode.SYSTEM_ERROR, error_text(error))
            pull.connection.send(answer)

    def _is_certain(self, result: GetRangesResult) -> bool:
        """Whether the requested offset is wrong, and not merely beyond what is dispatched."""
        is_small = result.status is GetMessageStatus.OFFSET_TOO_SMALL
        return is_small or self._store.log.is_dispatched_whole()

    def _hold(self, pull: _Pull) -> None:
        asked, of_client = pull.asked, len(self._pulls_of.get(pull.connection, ()))
        self._holds.add(asked.message_filter, asked.filter_bytes, of_client)
        pull.connection.on_writable = lambda: self._wake_connection(pull.connection)
        # fields and body are not kept while it waits
        request = pull.request
        pull.request = Frame(request.code, request.opaque, codec=request.codec)
        loop = asyncio.get_running_loop()
        pull.deadline = loop.call_later(pull.asked.suspend_seconds, self._expired, pull)
        self._pulls_of.setdefault(pull.connection, {})[pull] = None
        self._pulls.setdefault(pull.queue, {})[pull] = None
        self._is_holding.set()

    def _release(self, pull: _Pull) -> None:
        if pull.deadline is not None:
            pull.deadline.cancel()
            pull.deadline = None
            self._holds.remove(pull.asked.message_filter, pull.asked.filter_bytes)
        self._unsettled.pop(pull, None)
        _discard(self._pulls, pull.queue, pull)
        _discard(self._pulls_of, pull.connection, pull)
        if not self._pulls:
            self._is_holding.clear()

    def _woken(self, pull: _Pull) -> Frame | Encoded | None:
        """The answer of a waiting pull, which then waits no longer; None while nothing is new."""
        for _ in range(LOOKS_AT_ONCE):
            result = self._look(pull, pull.look_at)
            code = response_code(result.status, pull.look_at)
            if code is ResponseCode.PULL_NOT_FOUND:
                pull.queue_end = result.max_offset
                self._unsettled.pop(pull, None)
                return None
            if code is ResponseCode.PULL_OFFSET_MOVED:
                if not self._is_certain(result):
                    self._unsettled[pull] = None
                    return None
                break
            if result.status is not GetMessageStatus.NO_MATCHED_MESSAGE:
                break
            pull.look_at = result.next_begin_offset
        self._release(pull)
        return self._answer(pull, result)

    def _wake(self, pull: _Pull) -> None:
        """Answer a waiting pull if there is an answer and its client takes it."""
        if not pull.connection.is_writable:
            return
        if pull.connection.is_memory_spent:
            self._unsettled[pull] = None
            return
        try:
            answer = self._woken(pull)
        except (ReputError, OSError) as error:
            self._release(pull)
            answer = pull.request.answer(ResponseCode.SYSTEM_ERROR, error_text(error))
        if answer is not None:
            pull.connection.send(answer)

    def _expired(self, pull: _Pull) -> None:
        self._release(pull)
        try:
            self._store.refresh()
            answer = self._answer(pull, self._look(pull, pull.offset))
        except (ReputError, OSError) as error:
            answer = pull.request.answer(ResponseCode.SYSTEM_ERROR, error_text(error))
        pull.connection.send(answer)

    async def _wake_grown(self, queues: Collection[QueueName] | None) -> None:
        """Wake the waiting pulls of those queues (None: of any queue) that have grown.

        Other connections have their turn in between.
        """
        for number, pull in enumerate(self._grown(queues), 1):
            if pull is not None and pull in self._pulls.get(pull.queue, ()):
                self._wake(pull)
            if number % WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _grown(self, queues: Collection[QueueName] | None) -> Iterator[_Pull | None]:
        """Yield the pulls to wake, and None before each look at a queue, since that takes time
        too."""
        names: Collection[QueueName] = self._pulls.keys()
        if queues is not None:
            names = dict.fromkeys((*queues, *(pull.queue for pull in self._unsettled)))
        for queue in [queue for queue in names if queue in self._pulls]:
            yield None
            try:
                end = self._store.queue(*queue).max_offset()
            except (ReputError, OSError):
                end = -1  # the pulls are woken and answer with the error
            waiting = self._pulls.get(queue, ())
            yield from [pull for pull in waiting if pull.queue_end != end or end < 0]

    def _wake_connection(self, connection: Connection) -> None:
        for pull in list(self._pulls_of.get(connection, ())):
            self._wake(pull)

    def connection_closed(self, connection: Connection) -> None:
        """Drop the waiting pulls of a lost connection."""
        self._admission.forget()
        for pull in list(self._pulls_of.get(connection, ())):
            self._release(pull)

    async def watch(self) -> None:
        """Wake waiting pulls when messages arrive, until cancelled."""
        seen, problem = -1, ""
        queues: Collection[QueueName] | None = None
        while True:
            await self._is_holding.wait()
            if not problem:
                queues = await self._arrivals.wait()
            try:
                self._store.refresh()
                problem = ""
            except (ReputError, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.error("new messages cannot be seen now: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if queues is not None or self._store.log.end != seen:
                seen = self._store.log.end
                await self._wake_grown(queues)


def _ext(
    sys_flags: tuple[int, int], next_offset: object, min_offset: object, max_offset: object
) -> dict[str, str]:
    """Fields of every answer to a pull; ``sys_flags`` are those of topic and group."""
    return {
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
        "suggestWhichBrokerId": "0",
        "topicSysFlag": str(sys_flags[0]),
        "groupSysFlag": str(sys_flags[1]),
    }


@lru_cache(256)
def _found_template(sys_flags: tuple[int, int]) -> HeadTemplate:
    """Answers with messages."""
    ext = _ext(sys_flags, "%d", "%d", "%d")
    status = GetMessageStatus.FOUND
    return HeadTemplate(Frame(_CODES[status], 0, RESPONSE, status.value, ext))


def _discard(pulls_of: dict[_Key, _Pulls], key: _Key, pull: _Pull) -> None:
    pulls = pulls_of.get(key, {})
    pulls.pop(pull, None)
    if not pulls:
        pulls_of.pop(key, None)
