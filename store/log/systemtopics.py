"""RocketMQ's own topics, in which brokers and clients keep what is not for consumers.

Half and op messages of transactions, delayed messages until they are due, the timer wheel, the
revive log of pop consumers, traces and self-tests lie there. Retry and dead letter topics are a
consumer's. Source: ``TopicValidator.isSystemTopic`` of RocketMQ 5.5.1; 5.3.3 has the same list
without the half topics of transactions in RocksDB.
"""

from __future__ import annotations

from reput.store.log import record

DEFAULT_TOPIC = "TBW102"
"""The topic whose route stands for that of a topic which does not exist yet; it has no messages."""
SYSTEM_TOPICS = frozenset(
    (
        DEFAULT_TOPIC, record.SCHEDULE_TOPIC.decode(), "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    )
)  # fmt: skip
SYSTEM_TOPIC_PREFIX = record.SYSTEM_TOPIC_PREFIX.decode()


TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
WAITING_TOPICS = frozenset(("SCHEDULE_TOPIC_XXXX", TIMER_TOPIC, HALF_TOPIC))
"""Topics whose messages wait for a broker to deliver them."""
CARRYING_TOPICS = WAITING_TOPICS | {
    ROCKSDB_HALF_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC"
}  # fmt: skip
"""Topics in which messages of other topics lie, whose property REAL_TOPIC names their own."""


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)
