"""The checks that a pull must pass, in RocketMQ's order.

Clients ask for the same queue again and again, so what a check found stands for a second, unless a
group changes. Source: RocketMQ 5.3.3 ``PullMessageProcessor``.
"""

from __future__ import annotations

from dataclasses import dataclass

from reput.readers.messagefilter import MessageFilter
from reput.serving import requests
from reput.serving.codes import ResponseCode
from reput.serving.connection import Connection, Refused
from reput.serving.frame import Frame, Likeness
from reput.serving.grouppolicy import GroupPolicies
from reput.serving.groups import BROADCASTING, TAG, Groups, parse_filter, parsed_bytes
from reput.serving.topics import PERM_READ, Topics
from reput.store.filetimes import LookTimer
from reput.store.state.consumeroffset import TopicGroup

MAX_MSG_NUMS = 1 << 14
MAX_SUSPEND_MS = 60_000
MAX_KNOWN = 1 << 14
"""Checked pulls that are remembered."""
MAX_KNOWN_BYTES = 32 << 20
"""Limit of what their filters take."""

FLAG_COMMIT, FLAG_SUSPEND, FLAG_SUBSCRIPTION = 1, 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """A pull that has passed the checks, without its offsets."""

    key: TopicGroup
    queue_id: int
    max_count: int
    message_filter: MessageFilter
    filter_bytes: int
    """An upper bound of what the filter takes in memory."""
    is_commit: bool
    suspend_seconds: float
    """How long it may wait."""
    sys_flags: tuple[int, int]
    """The topic's and the group's."""


class Admission:
    """Checks the pulls of one broker."""

    def __init__(self, topics: Topics, groups: Groups, policies: GroupPolicies) -> None:
        self._topics = topics
        self._groups = groups
        self._policies = policies
        self._admissions: dict[tuple[Connection, Likeness, str], Admitted] = {}
        """Passed pulls; the text is the queue id, as the request states it."""
        self._known_bytes = 0
        self._timer = LookTimer()
        self._changes = -1

    def admit(self, connection: Connection, request: Frame) -> Admitted:
        """Return what a pull may ask for (``PullMessageRequestHeader``). Raises Refused."""
        likeness = request.likeness
        if likeness is None:
            return self._check(connection, request)
        if self._timer.is_due() or self._changes != self._groups.changes:
            self._changes = self._groups.changes
            self.forget()
        key = connection, likeness, request.ext.get("queueId", "")
        admission = self._admissions.get(key)
        if admission is None:
            admission = self._check(connection, request)
            known_bytes = self._known_bytes + admission.filter_bytes
            if len(self._admissions) >= MAX_KNOWN or known_bytes > MAX_KNOWN_BYTES:
                self.forget()
            self._known_bytes += admission.filter_bytes
            self._admissions[key] = admission
        return admission

    def forget(self) -> None:
        """Check every pull anew, and let go of lost connections."""
        self._admissions.clear()
        self._known_bytes = 0

    def _check(self, connection: Connection, request: Frame) -> Admitted:
        group, name = requests.group(request), requests.text(request, "topic")
        queue_id = requests.number(request, "queueId")
        # like a broker, maxMsgBytes is ignored
        max_count = min(requests.number(request, "maxMsgNums"), MAX_MSG_NUMS)
        sys_flag = requests.number(request, "sysFlag", 0)
        suspend_ms = min(requests.number(request, "suspendTimeoutMillis", 0), MAX_SUSPEND_MS)
        policy = self._policies.find(group)
        if not policy.is_consume_enabled:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {group}",
                {"forbiddenType": "2"},
            )
        topic = self._topics.find(name)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! "
                "reput serves the topics that the store has",
            )
        if not topic.perm & PERM_READ:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{name}] pulling message is forbidden",
                {"forbiddenType": "3"},
            )
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{connection.peer}]",
            )
        message_filter, expression = self._filter(connection, request, group, name, sys_flag)
        can_suspend = sys_flag & FLAG_SUSPEND and suspend_ms > 0
        return Admitted(
            TopicGroup(name, group), queue_id, max_count,
            message_filter, parsed_bytes(expression),
            bool(sys_flag & FLAG_COMMIT), suspend_ms / 1000 if can_suspend else 0.0,
            (topic.sys_flag, policy.sys_flag),
        )  # fmt: skip

    def _filter(
        self, connection: Connection, request: Frame, group: str, topic: str, sys_flag: int
    ) -> tuple[MessageFilter, str]:
        """The filter that the request brings, or that of the client's own subscription, and its
        expression."""
        sub_version = requests.number(request, "subVersion", 0)
        if sys_flag & FLAG_SUBSCRIPTION:
            expression = request.ext.get("subscription") or "*"
            try:
                kind = request.ext.get("expressionType") or TAG
                return parse_filter(expression, kind), expression
            except ValueError as error:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from error
        member = self._groups.member(connection, group)
        if member is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        self._check_allowed(group, topic)
        subscription = member.subscriptions.get(topic)
        if subscription is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist, group: {group}, topic: {topic}",
            )
        if subscription.sub_version < sub_version:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if subscription.message_filter is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the subscription {subscription.expression!r} cannot be parsed",
            )
        return subscription.message_filter, subscription.expression

    def _check_allowed(self, name: str, topic: str) -> None:
        """Raise Refused for what the group's members must not do."""
        policy, group = self._policies.find(name), self._groups.get(name)
        if group and group.message_model == BROADCASTING and not policy.is_broadcast_enabled:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] can not consume by broadcast way",
                {"forbiddenType": "4"},
            )
        if topic in policy.forbidden_topics:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] is forbidden for topic[{topic}]",
                {"forbiddenType": "5"},
            )
