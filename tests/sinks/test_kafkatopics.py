"""Names for Kafka's topics: legal, and never one for two topics."""

from __future__ import annotations

import itertools
import random
import re
from hashlib import sha256

import pytest

from reput.sinks.kafka.topics import TopicNames, TopicSelection, check_topic
from reput.store.errors import UsageError
from reput.store.rows.rowform import RowForm

LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def folded(name: str) -> str:
    """Kafka refuses a topic whose name equals another's after this."""
    return name.replace(".", "_")


def test_ordinary_names_stay_as_they_are() -> None:
    """Names that RocketMQ's brokers allow stay, except for the percent sign."""
    for topic in ("Orders", "order_added", "A-b_9", "_x", "RMQ_x_25"):
        assert TopicNames().of(topic) == topic
        assert TopicNames("rocketmq.{topic}-v1").of(topic) == f"rocketmq.{topic}-v1"


def test_a_topic_of_arrivals_is_a_legal_name() -> None:
    """As Kafka's Topic.validate has it."""
    for name in ("a", "A-b_9.c", "...", "x" * 249):
        check_topic(name)
    for name in ("", ".", "..", "a b", "é", "a/b", "x" * 250):
        with pytest.raises(UsageError, match="249"):
            check_topic(name)


def test_other_names_are_escaped() -> None:
    """As the documentation says."""
    names = TopicNames(reserved={"taken"})
    assert names.of("%RETRY%group") == ".x25RETRY.x25group"
    assert names.of("a.b") == "a.x2eb"
    assert names.of("é") == ".xc3.xa9"
    assert names.of("a_x2eb") == "a.x5fx2eb"
    assert names.of("__consumer_offsets") == ".x5f_consumer_offsets"
    assert names.of("reput-arrivals") == ".x72eput-arrivals"
    assert names.of("taken") == ".x74aken"
    assert TopicNames("m-{topic}").of("__consumer_offsets") == "m-__consumer_offsets"


def test_a_topic_of_other_data_that_differs_in_dots_alone_is_another() -> None:
    """Kafka would refuse to create the second of the two, and the mirror would stop at it."""
    names = TopicNames(reserved={"order.events", "a_b.c"})
    assert names.of("order_events") == ".x6frder_events"
    assert names.of("order.events") == "order.x2eevents"
    assert names.of("order_events2") == "order_events2"
    assert names.of("a_b_c") == ".x61_b_c"
    made = [
        names.of(topic) for topic in ("order_events", "order.events", "a_b_c", "a.b.c", "a.b_c")
    ]
    assert len({folded(name) for name in (*made, "order.events", "a_b.c")}) == len(made) + 2


def test_no_two_topics_share_a_name() -> None:
    """All short names over an alphabet that escapes are made of, long ones that differ at the end,
    and random ones; after Kafka's folding too."""
    alphabet = "_.x2ef%"
    topics = {
        "".join(letters)
        for length in range(6)
        for letters in itertools.product(alphabet, repeat=length)
    }
    topics |= {f"{'long' * 61}{suffix}" for suffix in ("", "a", "b", "ab", "abcdef", "%", "abcdeg")}
    rng = random.Random(6)
    topics |= {
        "".join(rng.choice("ab%_.é中😀") for _ in range(rng.randrange(1, 120))) for _ in range(5000)
    }
    for template in ("{topic}", "p_x2e.{topic}.x2e"):
        names = TopicNames(template, {"_", "x"})
        made = [names.of(topic) for topic in topics]
        assert all(LEGAL.fullmatch(name) for name in made)
        assert not {".", "..", "_", "x"} & set(made)
        assert not any(name.startswith(("__", "reput-")) for name in made)
        assert len({folded(name) for name in made}) == len(topics)


def test_a_format_without_a_place_or_with_what_kafka_forbids_is_refused() -> None:
    """In one line that says what it must be."""
    for template in (
        "",
        "x",
        "__{topic}",
        "reput-{topic}",
        "{topic}{topic}",
        "a b{topic}",
        "{topic}/",
        "p" * 200 + "{topic}",
    ):
        with pytest.raises(UsageError, match="the format of Kafka's topic names is"):
            TopicNames(template)


def test_names_and_formats_of_the_greatest_length() -> None:
    """A name of 249 characters stays, and a longer one ends in a digest; what a format adds takes
    half of that at most."""
    assert TopicNames().of("x" * 249) == "x" * 249
    assert TopicNames().of("x" * 250) == "x" * 205 + f".xfe{sha256(b'x' * 250).hexdigest()[:40]}"
    assert TopicNames("p" * 124 + "{topic}").of("T") == "p" * 124 + "T"
    with pytest.raises(UsageError, match="up to 124 letters"):
        TopicNames("p" * 125 + "{topic}")


def test_rocketmqs_own_topics_are_left_out_unless_chosen() -> None:
    """Retry and dead letter topics are a consumer's, not RocketMQ's own."""
    own = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102",
           "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC")  # fmt: skip
    everything = RowForm(include_internal=True)
    for topic in own:
        assert topic not in TopicSelection()
        assert topic not in TopicSelection(("*", f"{topic[:-1]}?"))
        assert topic in TopicSelection((topic,))
        assert topic in TopicSelection(("*",), everything)
        assert topic not in TopicSelection(("Orders",), everything)
    for topic in ("Orders", "%RETRY%g", "%DLQ%g"):
        assert topic in TopicSelection()
    chosen = TopicSelection(("Order*", "Audit"))
    assert [topic in chosen for topic in ("Orders", "Audit", "Audits", "orders")] == [
        True, True, False, False,
    ]  # fmt: skip
