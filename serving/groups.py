"""Consumer groups: who their members are, and what each of them subscribes to.

RocketMQ keeps one set of subscriptions for a group, so that the member which spoke last decides
what the others get. Here every member is served its own subscription, and one that differs from
another member's is named in a warning. One client id is one member, however many connections it
has. Members are not kept over a restart: clients send heartbeats every 30 s. Source: RocketMQ 5.3.3
``ClientManageProcessor``, ``ConsumerManager``, ``ConsumerManageProcessor``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypedDict

from reput.filters.consumers import SQL92
from reput.readers.messagefilter import MessageFilter
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.fastjson import (
    as_enum,
    as_flag,
    as_number,
    as_numbers,
    as_object,
    as_objects,
    as_text,
    as_texts,
)
from reput.serving.frame import Frame
from reput.store.names import is_client_id, is_group
from reput.store.queue.consumequeue import MAX_TOPIC_BYTES

logger = logging.getLogger("reput")

EXPIRY_SECONDS = 120.0
"""A member that sends no heartbeat for this time is removed."""
QUIET_SECONDS = 0.005
"""Time from a notice to the next, for each member but one that got it. Of two members that start
together the first reads all queues until it is told of the second, so that one is told at once; in
a large group, where every notice makes every member ask, a rolling start is told in few notices."""
LONGEST_QUIET_SECONDS = 1.0
"""A change is noticed up to this long after it, however large the group is."""
MAX_BYTES = 512 << 20
"""Limit of all members' subscriptions together; beyond it, further ones are refused."""
MAX_EXPRESSION_LENGTH = 16 << 10
BROADCASTING = "BROADCASTING"
TAG = "TAG"

_consume_type = partial(as_enum, names=("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"))
_message_model = partial(as_enum, names=(BROADCASTING, "CLUSTERING"))
_consume_from_where = partial(
    as_enum,
    names=(
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
)  # fmt: skip


class SubscriptionData(TypedDict):
    """SubscriptionData as a broker shows it."""

    classFilterMode: bool
    codeSet: list[int]
    expressionType: str
    subString: str
    subVersion: int
    tagsSet: list[str]
    topic: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member takes these messages of one topic."""

    topic: str
    expression: str
    expression_type: str
    sub_version: int
    """ms; the member raises it when its share of the queues changes."""
    message_filter: MessageFilter | None
    """None for an expression that RocketMQ does not understand."""
    data: SubscriptionData


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One group as a heartbeat describes it."""

    group_name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: list[SubscriptionData]
    size: int
    """Bytes that they take here, about."""


@dataclass(slots=True)
class Member:
    """One client in a group."""

    client_id: str
    connection: Connection
    language: str
    version: int
    last_beat: float
    size: int = 0
    """Bytes that it takes here, about."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """By topic."""


@dataclass(slots=True)
class Group:
    """One consumer group with members."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    """By client id."""
    listed: bytes = b""
    """The member list as members ask for it after a notice, topic by topic; empty after a
    change."""
    notice: asyncio.Handle | None = None
    """The notice to come; it covers all changes until then."""
    quiet_until: float = 0.0


@lru_cache(64)
def parse_filter(expression: str, expression_type: str) -> MessageFilter:
    """A subscription's filter. Raises ValueError for an expression that RocketMQ refuses, or that
    is too long."""
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"an expression of {len(expression)} characters is too long")
    if expression_type == SQL92:
        return MessageFilter.by_sql(expression)
    if expression_type == TAG:
        return MessageFilter.by_tags(expression)
    raise ValueError(f"expression type {expression_type[:80]!r} is neither TAG nor SQL92")


def parsed_bytes(expression: str) -> int:
    """Return an upper bound of what an expression's filter takes in memory, with its text."""
    return 128 * len(expression)


class Groups:
    """The registry of one broker's groups: clients send heartbeats to every broker."""

    def __init__(self, on_leave: Callable[[str, str, bool], None]) -> None:
        """``on_leave`` is called with the group, the client id, and whether the client itself
        announced that it leaves, which it may do after it was removed."""
        self._on_leave = on_leave
        self._groups: dict[str, Group] = {}
        self._by_connection: dict[Connection, dict[str, str]] = {}
        """Client id by group."""
        self._size = 0
        """Bytes that all members take."""
        self.changes = 0
        """It grows whenever a member, or what it takes, may have changed."""

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.list_connections,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client_config,
        }

    def get(self, name: str) -> Group | None:
        """A group that has members."""
        return self._groups.get(name)

    def member(self, connection: Connection, group: str) -> Member | None:
        """The member of a group that speaks over this connection."""
        client_id = self._by_connection.get(connection, {}).get(group)
        entry = self._groups.get(group)
        return entry.members.get(client_id) if entry and client_id is not None else None

    def names(self) -> list[str]:
        """All groups that have members."""
        return list(self._groups)

    def subscribers(self, topic: str) -> set[str]:
        """The groups of which some member subscribes to a topic."""
        groups = self._groups.values()
        return {g.name for g in groups if any(topic in m.subscriptions for m in g.members.values())}

    def subscription_data(self, name: str, topic: str) -> SubscriptionData | None:
        """The subscription of a group to a topic, as one of its members has sent it."""
        group = self._groups.get(name)
        members = group.members.values() if group else ()
        subscriptions = (member.subscriptions.get(topic) for member in members)
        return next((subscription.data for subscription in subscriptions if subscription), None)

    def groups_of(self, connection: Connection, topic: str) -> Iterator[str]:
        """The groups whose member on this connection subscribes to a topic."""
        for group in self._by_connection.get(connection, {}):
            member = self.member(connection, group)
            if member is not None and topic in member.subscriptions:
                yield group

    def heart_beat(self, connection: Connection, request: Frame) -> Frame:
        """Add or renew the sender's memberships."""
        body = requests.json_body(request)
        client_id = requests.field(body, "clientID", as_text)
        if not is_client_id(client_id):
            raise Refused(ResponseCode.SYSTEM_ERROR, "the heartbeat's clientID is no client's")
        is_whole = not requests.field(body, "withoutSub", as_flag)
        # all of it is read before anything of it is kept
        consumers = [
            _consumer_data(data) for data in requests.field(body, "consumerDataSet", as_objects)
        ]
        is_unknown, no_group = False, None
        for consumer in consumers:
            if not is_group(consumer.group_name):
                no_group = consumer.group_name
                continue
            member = self._beat(connection, request, client_id, consumer, is_whole)
            is_unknown = is_unknown or not member.subscriptions
        if no_group is not None:
            logger.warning("client %s names no group: %.80r", client_id, no_group)
        ext = {
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "true" if is_whole or is_unknown else "false",
        }
        return request.answer(ResponseCode.SUCCESS, None, ext)

    def _beat(
        self,
        connection: Connection,
        request: Frame,
        client_id: str,
        consumer: ConsumerData,
        is_whole: bool,
    ) -> Member:
        name = consumer.group_name
        group = self._groups.get(name) or Group(name)
        member = group.members.get(client_id)
        former_size = member.size if member else 0
        size = consumer.size if is_whole or not member else former_size
        if size > former_size and self._size + size - former_size > MAX_BYTES:
            raise Refused(ResponseCode.SYSTEM_BUSY, "there are too many members and subscriptions")
        self.changes += 1
        self._groups[name] = group
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        now = asyncio.get_running_loop().time()
        if member is None:
            member = Member(client_id, connection, request.language, request.version, now)
            group.members[client_id] = member
            logger.info("client %s of %s joins group %s", client_id, connection.peer, group.name)
            self._changed(group)
        elif member.connection is not connection:
            if member.connection.is_open:
                logger.warning(
                    "client id %s of group %s is used by %s and %s; give each instance a name",
                    client_id, group.name, member.connection.peer, connection.peer,
                )  # fmt: skip
            self._by_connection.get(member.connection, {}).pop(group.name, None)
            member.connection = connection
        member.last_beat = now
        self._size += size - former_size
        member.size = size
        self._by_connection.setdefault(connection, {})[group.name] = client_id
        if is_whole:
            self._subscribe(group, member, consumer.subscriptions)
        return member

    def _subscribe(self, group: Group, member: Member, data: list[SubscriptionData]) -> None:
        """Replace a member's subscriptions; an older version does not replace a newer one."""
        subscriptions: dict[str, Subscription] = {}
        sents = [_subscription(item) for item in data if _is_topic(item["topic"])]
        if len(sents) < len(data):
            logger.warning("client %s sends subscriptions that are none", member.client_id)
        for sent in sents:
            former = member.subscriptions.get(sent.topic)
            is_newer = former is None or sent.sub_version >= former.sub_version
            subscriptions[sent.topic] = sent if is_newer or former is None else former
            if is_newer and (former is None or former.expression != sent.expression):
                _warn_of_difference(group, member, sent)
        if subscriptions.keys() != member.subscriptions.keys():
            self._changed(group)
        member.subscriptions = subscriptions

    def unregister(self, _connection: Connection, request: Frame) -> Frame:
        """Remove a member that leaves; a producer that leaves is no member, and is ignored."""
        name = request.ext.get("consumerGroup")
        client_id = request.ext.get("clientID")
        group = self._groups.get(name) if name else None
        if group is not None and client_id in group.members:
            self._remove(group, group.members[client_id], said=True)
        elif name and client_id:
            # one that sent no heartbeats for too long may still have its locks
            self._on_leave(name, client_id, True)
        return request.answer(ResponseCode.SUCCESS)

    def connection_closed(self, connection: Connection) -> None:
        """Remove the members that spoke over a lost connection."""
        for name, client_id in self._by_connection.pop(connection, {}).items():
            group = self._groups.get(name)
            if group is not None and client_id in group.members:
                self._remove(group, group.members[client_id], said=False)

    def expire(self) -> None:
        """Remove members that stopped sending heartbeats."""
        oldest = asyncio.get_running_loop().time() - EXPIRY_SECONDS
        for group in list(self._groups.values()):
            for member in [m for m in group.members.values() if m.last_beat < oldest]:
                self._remove(group, member, said=False)

    def _remove(self, group: Group, member: Member, *, said: bool) -> None:
        self.changes += 1
        del group.members[member.client_id]
        self._size -= member.size
        self._by_connection.get(member.connection, {}).pop(group.name, None)
        logger.info("client %s leaves group %s", member.client_id, group.name)
        self._on_leave(group.name, member.client_id, said)
        self._changed(group)
        if not group.members:
            if group.notice is not None:
                group.notice.cancel()
            del self._groups[group.name]

    def _changed(self, group: Group) -> None:
        """Notify the members: at once, unless they have just been."""
        group.listed = b""
        if group.message_model == BROADCASTING or group.notice is not None:
            return
        loop = asyncio.get_running_loop()
        if group.quiet_until > loop.time():
            group.notice = loop.call_at(group.quiet_until, self._notify, group)
        else:
            # it covers all that this request changes
            group.notice = loop.call_soon(self._notify, group)

    def _notify(self, group: Group) -> None:
        group.notice = None
        quiet = min(QUIET_SECONDS * (len(group.members) - 1), LONGEST_QUIET_SECONDS)
        group.quiet_until = asyncio.get_running_loop().time() + quiet
        for member in group.members.values():
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            member.connection.notify(code, {"consumerGroup": group.name})

    def list_members(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the client ids of a group, each once."""
        name = requests.text(request, "consumerGroup")
        group = self._groups.get(name)
        if group is None:
            text = f"no consumer for this group, {name}"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        if not group.listed:
            group.listed = requests.to_json({"consumerIdList": sorted(group.members)})
        return request.answer(ResponseCode.SUCCESS, body=group.listed)

    def list_connections(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with members, addresses and subscriptions of a group."""
        name = requests.text(request, "consumerGroup")
        group = self._groups.get(name)
        if group is None:
            text = f"the consumer group[{name}] not online"
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, text)
        members = group.members.values()
        body = {
            "connectionSet": [
                {
                    "clientAddr": member.connection.peer,
                    "clientId": member.client_id,
                    "language": member.language,
                    "version": member.version,
                }
                for member in members
            ],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {
                topic: subscription.data
                for member in members
                for topic, subscription in member.subscriptions.items()
            },
        }
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json(body))

    def check_client_config(self, _connection: Connection, request: Frame) -> Frame:
        """Answer whether an SQL92 subscription can be understood."""
        body = requests.json_body(request)
        data = _subscription_data(requests.field(body, "subscriptionData", as_object))
        try:
            parse_filter(data["subString"], data["expressionType"])
        except ValueError as error:
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return request.answer(ResponseCode.SUCCESS)


def _consumer_data(data: Mapping[str, object]) -> ConsumerData:
    """Read ConsumerData. Raises Refused."""
    name = requests.field(data, "groupName", as_text)
    if not name:
        raise Refused(ResponseCode.SYSTEM_ERROR, "the heartbeat has a group without name")
    entries = requests.field(data, "subscriptionDataSet", as_objects)
    subscriptions = [_subscription_data(entry) for entry in entries]
    expressions = sum(parsed_bytes(item["subString"]) for item in subscriptions)
    return ConsumerData(
        name,
        requests.field(data, "consumeType", _consume_type),
        requests.field(data, "messageModel", _message_model),
        requests.field(data, "consumeFromWhere", _consume_from_where),
        subscriptions,
        1024 + 6 * len(requests.to_text(data)) + expressions,
    )


def _subscription_data(data: Mapping[str, object]) -> SubscriptionData:
    """Read SubscriptionData. Raises Refused."""
    topic = requests.field(data, "topic", as_text)
    if not topic:
        raise Refused(ResponseCode.SYSTEM_ERROR, "a subscription has no topic")
    # the class takes the time at which it is made where nothing is sent
    now_ms = time.time_ns() // 1_000_000
    return {
        "classFilterMode": requests.field(data, "classFilterMode", as_flag),
        "codeSet": requests.field(data, "codeSet", as_numbers),
        "expressionType": requests.field(data, "expressionType", as_text) or TAG,
        "subString": requests.field(data, "subString", as_text) or "*",
        "subVersion": requests.field(data, "subVersion", partial(as_number, default=now_ms)),
        "tagsSet": requests.field(data, "tagsSet", as_texts),
        "topic": topic,
    }


def _is_topic(name: str) -> bool:
    """Whether a subscription may name this; it is written to logs, in one line."""
    return len(name) <= MAX_TOPIC_BYTES and name.isprintable()


def _subscription(data: SubscriptionData) -> Subscription:
    expression, kind = data["subString"], data["expressionType"]
    try:
        parsed = parse_filter(expression, kind)
    except ValueError:
        parsed = None
    return Subscription(data["topic"], expression, kind, data["subVersion"], parsed, data)


def _warn_of_difference(group: Group, member: Member, sent: Subscription) -> None:
    for other in group.members.values():
        theirs = other.subscriptions.get(sent.topic)
        if other is member or theirs is None:
            continue
        if (theirs.expression, theirs.expression_type) != (sent.expression, sent.expression_type):
            logger.warning(
                "members of group %s want different messages of topic %s: %s wants %r and %s %r; "
                "each is served its own, and messages may be missed: give all members the same",
                group.name, sent.topic, member.client_id, sent.expression, other.client_id,
                theirs.expression,
            )  # fmt: skip
        # where the others differ among themselves, that was said when they came
        return
