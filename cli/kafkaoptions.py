"""The options of ``reput run`` for Kafka."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from reput.cli.options import KAFKA, flag, size_option, value
from reput.store.errors import UsageError
from reput.store.follower import FollowerTarget
from reput.store.rows.rowform import RowForm

_CLIENT_PREFIXES = ("security_", "ssl_", "sasl_")

Kafka = Annotated[
    str | None,
    value(
        "HOST:PORT",
        "Also send every message to this Kafka, exactly once; `HOST:PORT`, ...",
        panel=KAFKA,
    ),
]
KafkaTopics = Annotated[
    str | None,
    value(
        "TOPICS",
        "Send only these topics, with commas, `*` and `?`; one of RocketMQ's own needs its name.",
        panel=KAFKA,
    ),
]
KafkaTopicFormat = Annotated[
    str,
    value(
        "FORMAT",
        "The name that a topic gets in Kafka, such as `rocketmq.{topic}`.",
        panel=KAFKA,
    ),
]
NoKafkaMirror = Annotated[
    bool,
    flag(
        "Send no messages, only what `--kafka-arrivals` asks for.",
        "--no-kafka-mirror",
        panel=KAFKA,
    ),
]
KafkaArrivals = Annotated[
    str | None,
    value(
        "TOPIC",
        "Also send a notice of each message to this Kafka topic, such as `reput-arrivals`.",
        panel=KAFKA,
    ),
]
KafkaMaxMessageBytes = Annotated[
    str,
    value(
        "SIZE",
        "The largest message to send, and the limit of topics that reput creates.",
        panel=KAFKA,
    ),
]
KafkaStoreId = Annotated[
    str | None,
    value("ID", "The store's name in Kafka, for a position that outlives OUTPUT.", panel=KAFKA),
]
KafkaConfig = Annotated[
    Path | None,
    value(
        "FILE",
        "TOML file with `security_`, `ssl_` and `sasl_` settings of kafka-python.",
        panel=KAFKA,
    ),
]


def kafka_followers(
    kafka: Kafka = None,
    kafka_topics: KafkaTopics = None,
    kafka_topic_format: KafkaTopicFormat = "{topic}",
    no_kafka_mirror: NoKafkaMirror = False,
    kafka_arrivals: KafkaArrivals = None,
    kafka_max_message_bytes: KafkaMaxMessageBytes = "32m",
    kafka_store_id: KafkaStoreId = None,
    kafka_config: KafkaConfig = None,
) -> Callable[[RowForm], tuple[FollowerTarget, ...]]:
    """Return a function for the Kafka followers that the options ask for. Raises UsageError."""
    size = size_option("--kafka-max-message-bytes", kafka_max_message_bytes)
    if kafka is None:
        if kafka_topics or kafka_arrivals or kafka_store_id or kafka_config or no_kafka_mirror:
            raise UsageError("the options that begin with --kafka- need --kafka HOST:PORT")
        return lambda _form: ()
    patterns = () if kafka_topics is None else tuple(kafka_topics.split(","))
    if "" in patterns:
        raise UsageError("--kafka-topics has an empty name; give names of topics with commas")
    if not kafka:
        raise UsageError("--kafka is empty; give HOST:PORT")
    if kafka_arrivals == "":
        raise UsageError("--kafka-arrivals is empty; give a topic")
    if no_kafka_mirror and kafka_arrivals is None:
        raise UsageError("--no-kafka-mirror leaves nothing to do without --kafka-arrivals TOPIC")
    from reput.sinks.kafka.mirror import KafkaArrivalsTarget, KafkaMirrorTarget  # noqa: PLC0415
    from reput.sinks.kafka.topics import TopicNames, TopicSelection  # noqa: PLC0415
    from reput.sinks.kafka.transactions import KafkaSettings  # noqa: PLC0415

    settings = KafkaSettings(kafka, kafka_store_id, size or 0, _client_settings(kafka_config))
    names = TopicNames(kafka_topic_format, frozenset((kafka_arrivals,) if kafka_arrivals else ()))

    def targets(form: RowForm) -> tuple[FollowerTarget, ...]:
        chosen = TopicSelection(patterns, form)
        followers: list[FollowerTarget] = []
        if not no_kafka_mirror:
            followers.append(KafkaMirrorTarget(settings, chosen, names))
        if kafka_arrivals:
            followers.append(KafkaArrivalsTarget(settings, chosen, kafka_arrivals))
        return tuple(followers)

    return targets


def _client_settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--kafka-config {path} cannot be read: {error}") from error
    for name in settings:
        if not name.startswith(_CLIENT_PREFIXES):
            raise UsageError(
                f"--kafka-config {path} sets {name!r}; only settings that begin with "
                f"{', '.join(_CLIENT_PREFIXES)} are taken"
            )
    return settings
