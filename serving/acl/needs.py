"""The one table of what each request touches, by request code.

RocketMQ's brokers leave many requests open to whoever signs, such as 14, 29 to 33, 41, 42, 202, 208
and 361, and some that are for administrators. Here every request that names a topic or a group, or
leads to a record of one, is checked, and a request without a row is for administrators. Source of
what is more than that: RocketMQ 5.3.2 ``PlainAccessValidator``, ``Permission``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from reput.readers.messages import decode_message_id
from reput.serving import requests
from reput.serving.codes import RequestCode
from reput.serving.fastjson import as_object, as_objects, as_text
from reput.serving.frame import Frame
from reput.serving.topics import DLQ_PREFIX, RETRY_PREFIX
from reput.store.log.systemtopics import CARRYING_TOPICS, DEFAULT_TOPIC


class Kind(StrEnum):
    """Kinds of what a request touches, by their names in ACL 2.0."""

    TOPIC = "Topic"
    GROUP = "Group"
    SERVER = "Server"
    """All topics and groups: an administrator's."""


class Action(StrEnum):
    """The kinds of use, by their names in ACL 2.0."""

    PUB = "Pub"
    SUB = "Sub"
    GET = "Get"


class Need(NamedTuple):
    """A right that a request needs: one of ``actions``, of which the first names it."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        if self.kind is Kind.SERVER:
            return "the rights of an administrator"
        return f"{self.actions[0].upper()} on {self.kind.lower()} {self.name!r:.160}"


PUBLISH, SUBSCRIBE = (Action.PUB,), (Action.SUB,)
ASK = Action.SUB, Action.GET
"""Whoever subscribes may also ask."""
ANY = Action.SUB, Action.PUB, Action.GET
ADMIN = Need(Kind.SERVER, "", ())

TopicAt = Callable[[int], str | None]
"""Tells the topic of the record at a physical offset; None if there is no record."""
Row = Callable[[Frame, TopicAt], Iterator[Need]]
"""Tells what a request needs, from its fields and body. It may raise Refused."""


def topic_needs(name: str, actions: tuple[Action, ...]) -> Iterator[Need]:
    """Yield what a topic needs. A retry topic is its group's, and a dead letter topic its group's
    too; of a topic in which messages of all topics lie, only an administrator may have anything."""
    if name.startswith(RETRY_PREFIX):
        yield Need(Kind.GROUP, name.removeprefix(RETRY_PREFIX), SUBSCRIBE)
    elif name in CARRYING_TOPICS:
        yield ADMIN
    else:
        yield Need(Kind.TOPIC, name, actions)
        if name.startswith(DLQ_PREFIX):
            yield Need(Kind.GROUP, name.removeprefix(DLQ_PREFIX), SUBSCRIBE)


def _topic(actions: tuple[Action, ...], field: str = "topic") -> Row:
    def row(request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
        yield from topic_needs(requests.text(request, field), actions)

    return row


def _group(actions: tuple[Action, ...], field: str = "consumerGroup") -> Row:
    def row(request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
        yield Need(Kind.GROUP, requests.text(request, field), actions)

    return row


def _record(actions: tuple[Action, ...], field: str = "offset") -> Row:
    """The topic of a record. Where none is, an administrator may be told so: others could learn
    the records' places, or ask just before one is written."""

    def row(request: Frame, topic_at: TopicAt) -> Iterator[Need]:
        yield from _needs_of_record(requests.number(request, field), topic_at, actions)

    return row


def _needs_of_record(offset: int, topic_at: TopicAt, actions: tuple[Action, ...]) -> Iterator[Need]:
    topic = topic_at(offset)
    if topic is None:
        yield ADMIN
    else:
        yield from topic_needs(topic, actions)


def _if_given(row: Row, field: str) -> Row:
    """A row for a field that may be absent."""

    def optional(request: Frame, topic_at: TopicAt) -> Iterator[Need]:
        if request.ext.get(field):
            yield from row(request, topic_at)

    return optional


def _all(*rows: Row) -> Row:
    def row(request: Frame, topic_at: TopicAt) -> Iterator[Need]:
        for each in rows:
            yield from each(request, topic_at)

    return row


def _admin(_request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
    yield ADMIN


def _nothing(_request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
    """It touches neither topic nor group; whoever signs may ask."""
    yield from ()


def _route(request: Frame, topic_at: TopicAt) -> Iterator[Need]:
    """Every client of RocketMQ 4.9 asks for the default topic's as well."""
    if requests.text(request, "topic") != DEFAULT_TOPIC:
        yield from _topic(ANY)(request, topic_at)


def _heartbeat(request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
    body = requests.json_body(request)
    for consumer in requests.field(body, "consumerDataSet", as_objects):
        yield Need(Kind.GROUP, requests.field(consumer, "groupName", as_text), SUBSCRIBE)
        yield from _topics_of(consumer, "subscriptionDataSet")


def _queues(request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
    body = requests.json_body(request)
    yield Need(Kind.GROUP, requests.field(body, "consumerGroup", as_text), SUBSCRIBE)
    yield from _topics_of(body, "mqSet")


def _topics_of(fields: Mapping[str, object], name: str) -> Iterator[Need]:
    for entry in requests.field(fields, name, as_objects):
        yield from topic_needs(requests.field(entry, "topic", as_text), SUBSCRIBE)


def _client_config(request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
    body = requests.json_body(request)
    yield Need(Kind.GROUP, requests.field(body, "group", as_text), SUBSCRIBE)
    subscription = requests.field(body, "subscriptionData", as_object)
    yield from topic_needs(requests.field(subscription, "topic", as_text), SUBSCRIBE)


def _correction(request: Frame, _topic_at: TopicAt) -> Iterator[Need]:
    """Offsets over all groups of a topic; RocketMQ removes those of ``filterGroups``."""
    if request.ext.get("filterGroups"):
        yield ADMIN
    yield from topic_needs(requests.text(request, "topic"), ASK)
    if group := request.ext.get("compareGroup"):
        yield Need(Kind.GROUP, group, ASK)


def _message_id(request: Frame, topic_at: TopicAt) -> Iterator[Need]:
    decoded = decode_message_id(requests.text(request, "msgId"))
    yield from _needs_of_record(decoded[1] if decoded else -1, topic_at, SUBSCRIBE)


_PULL = _all(_group(SUBSCRIBE), _topic(SUBSCRIBE))
_QUESTION = _all(_group(ASK), _topic(ASK))

TABLE: Mapping[int, Row] = {
    RequestCode.SEND_MESSAGE: _topic(PUBLISH),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: _topic(ASK),
    RequestCode.QUERY_CONSUMER_OFFSET: _QUESTION,
    RequestCode.UPDATE_CONSUMER_OFFSET: _PULL,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _admin,
    RequestCode.GET_ALL_TOPIC_CONFIG: _admin,
    RequestCode.UPDATE_BROKER_CONFIG: _admin,
    RequestCode.GET_BROKER_CONFIG: _admin,
    RequestCode.GET_BROKER_RUNTIME_INFO: _admin,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(ASK),
    RequestCode.GET_MAX_OFFSET: _topic(ASK),
    RequestCode.GET_MIN_OFFSET: _topic(ASK),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(ASK),
    RequestCode.VIEW_MESSAGE_BY_ID: _record(ASK),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _if_given(_group(SUBSCRIBE), "consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _all(_group(SUBSCRIBE, "group"), _record(SUBSCRIBE)),
    RequestCode.END_TRANSACTION: _record(PUBLISH, "commitLogOffset"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group(ASK),
    RequestCode.LOCK_BATCH_MQ: _queues,
    RequestCode.UNLOCK_BATCH_MQ: _queues,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _admin,
    RequestCode.CHECK_CLIENT_CONFIG: _client_config,
    RequestCode.GET_KV_CONFIG: _nothing,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _nothing,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _admin,
    RequestCode.GET_TOPIC_STATS_INFO: _topic(ASK),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group(ASK),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _admin,
    RequestCode.GET_CONSUME_STATS: _all(_group(ASK), _if_given(_topic(ASK), "topic")),
    RequestCode.DELETE_TOPIC_IN_BROKER: _admin,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _nothing,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _admin,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _topic(ASK),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _all(_group(ASK, "group"), _topic(ASK)),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _group(ASK),
    RequestCode.QUERY_CORRECTION_OFFSET: _correction,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _all(_group(SUBSCRIBE), _message_id),
    RequestCode.SEND_MESSAGE_V2: _topic(PUBLISH, "b"),
    RequestCode.CLONE_GROUP_OFFSET: _admin,
    RequestCode.GET_BROKER_CONSUME_STATS: _admin,
    RequestCode.SEND_BATCH_MESSAGE: _topic(PUBLISH, "b"),
    RequestCode.QUERY_CONSUME_QUEUE: _all(_topic(ASK), _if_given(_group(ASK), "consumerGroup")),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group(ASK, "group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _all(_group(ASK, "group"), _topic(ASK)),
    RequestCode.GET_TOPIC_CONFIG: _topic(ASK),
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.RECALL_MESSAGE: _topic(PUBLISH),
    RequestCode.POP_MESSAGE: _PULL,
}


def needs_of(request: Frame, topic_at: TopicAt) -> Iterator[Need]:
    """Yield the rights that a request needs. May raise Refused, as the request's handler does for
    values that it does not take."""
    yield from TABLE.get(request.code, _admin)(request, topic_at)
