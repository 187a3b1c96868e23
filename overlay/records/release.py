"""The broker that writes: differences of RocketMQ's releases, and a broker's own settings.

Only differences that stand in records or in refusals are listed. Source: ``SendMessageProcessor``,
``AbstractSendMessageProcessor``, ``HookUtils``, ``TransactionalMessageBridge``,
``EndTransactionProcessor``, ``RecallMessageProcessor`` and ``MessageDecoder`` of 4.9.7, 5.3.3 and
5.5.1, and records of brokers of these releases (``tests/golden``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum


class Refusal(IntEnum):
    """The codes with which RocketMQ refuses to write (``ResponseCode``)."""

    SYSTEM_ERROR = 1
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    """Clients do not try such a message again."""
    NO_PERMISSION = 16
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    ILLEGAL_OPERATION = 604


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The ways in which one release of RocketMQ writes differently from another."""

    name: str
    properties_capacity: int
    """Buckets of the map into which a text of properties is parsed."""
    ends_with_separator: bool
    r"""Whether the last property of a text ends with ``\x02``."""
    marks_sends: bool
    """Whether a sent message gets MSG_REGION and TRACE_ON, a UNIQ_KEY if it has none, and loses a
    POP_CK."""
    keeps_wait: bool
    """Whether WAIT stays in the text of a sent message."""
    appends_batch_properties: bool
    """Whether each message of a batch gets the batch's properties after its own."""
    dead_letters_at_max: bool
    """Whether a message that is sent to a retry topic is a dead letter from the largest number of
    attempts on, and still waits for its level; otherwise beyond that number, or while its group
    holds a lock, and at once."""
    has_timers: bool
    """Whether messages wait for a time of their own."""
    names_recalled_topic: bool
    """Whether a recall names the topic before the recalled UNIQ_KEY."""
    half_has_transaction_id: bool
    batches_ends: bool
    """Whether one op message names several half messages."""
    commit_keeps_real_topic: bool
    """Whether a committed message keeps REAL_TOPIC and REAL_QID."""
    wrong_target: Refusal
    """The answer to a send whose topic or queue cannot be."""


RELEASE_4_9_7 = Release(
    name="4.9.7",
    properties_capacity=16,
    ends_with_separator=False,
    marks_sends=False,
    keeps_wait=False,
    appends_batch_properties=True,
    dead_letters_at_max=True,
    has_timers=False,
    names_recalled_topic=False,
    half_has_transaction_id=False,
    batches_ends=False,
    commit_keeps_real_topic=True,
    wrong_target=Refusal.SYSTEM_ERROR,
)
RELEASE_5_3_3 = Release(
    name="5.3.3",
    properties_capacity=128,
    ends_with_separator=True,
    marks_sends=True,
    keeps_wait=True,
    appends_batch_properties=True,
    dead_letters_at_max=False,
    has_timers=True,
    names_recalled_topic=True,
    half_has_transaction_id=True,
    batches_ends=True,
    commit_keeps_real_topic=True,
    wrong_target=Refusal.INVALID_PARAMETER,
)
RELEASE_5_5_1 = replace(
    RELEASE_5_3_3,
    name="5.5.1",
    appends_batch_properties=False,
    names_recalled_topic=False,
    commit_keeps_real_topic=False,
)
RELEASES = {release.name: release for release in (RELEASE_4_9_7, RELEASE_5_3_3, RELEASE_5_5_1)}


@dataclass(frozen=True, slots=True)
class Writer:
    """The broker in whose name records are written."""

    release: Release
    host: tuple[str, int]
    """The storeHost of every record. A broker keeps that of the copy in most records; ours have
    their own, so that a message's id leads to the log that holds it."""
    cluster: str = "DefaultCluster"
    region: str = "DefaultRegion"
    max_delay_level: int = 18
    """``messageDelayLevel`` has this many."""
    max_timer_delay_ms: int = 3 * 24 * 3600 * 1000
    """``timerMaxDelaySec``, in ms."""
    max_message_size: int = 4 << 20
    """``maxMessageSize``, in bytes: the largest body that a producer may send."""
