"""The topics with batch queues: the broker's declarations compared with the files on disk.

The topic attribute ``queue.type`` decides which of two kinds of queue RocketMQ builds, SimpleCQ if
the attribute is missing or the topic unknown. A broker reads it when it first needs a queue, and
keeps an existing queue. The attribute cannot be changed; a topic can only be deleted, which removes
its queues, and created again. So an undeclared topic, such as a deleted one, keeps the kind of its
existing queues. If a declaration contradicts them, a broker does not start, and nothing is
dispatched here. Source: RocketMQ 5.3.3 ``QueueTypeUtils``, ``TopicAttributes``,
``ConsumeQueueStore.findOrCreateConsumeQueue`` and ``queueTypeShouldBe``; formats.md §1 and §7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from reput.store import configjson
from reput.store.commandline import command_line
from reput.store.errors import StoreError
from reput.store.files import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    TOPICS_FILE,
    is_mapped_file_name,
)
from reput.store.names import escaped
from reput.store.queue.consumequeue import topic_directory

QUEUE_TYPE = "queue.type"
BATCH_CQ = "BatchCQ"
SIMPLE_CQ = "SimpleCQ"


def read_topic_table(root: Path) -> Mapping[str, object]:
    """The topics that the store at ``root`` declares, by name; empty without
    ``config/topics.json``. Raises NotReadyError if the file is not whole, StoreError if it cannot
    be read."""
    path = root / TOPICS_FILE
    document = configjson.read(path)
    if document is None:
        return {}
    topics = document.get("topicConfigTable") if isinstance(document, dict) else None
    if not isinstance(topics, dict):
        line = f"{path} has no topicConfigTable; restore it from the broker's config"
        raise StoreError(line, path=path)
    return topics


def read_queue_types(root: Path) -> Mapping[bytes, str]:
    """The kind of queue, BATCH_CQ or SIMPLE_CQ, of every topic that the store at ``root`` declares.

    Raises StoreError if the file cannot be read or names another kind of queue.
    """
    kinds = {}
    for topic, config in read_topic_table(root).items():
        # a topic that was created before RocketMQ 5 has no attributes
        attributes = config.get("attributes") if isinstance(config, dict) else None
        stated = attributes.get(QUEUE_TYPE) if isinstance(attributes, dict) else None
        declared = SIMPLE_CQ if stated is None else stated
        if declared not in (SIMPLE_CQ, BATCH_CQ):
            raise StoreError(
                f"topic {escaped(topic.encode())} in {root / TOPICS_FILE} has "
                f"{QUEUE_TYPE}={declared}; it must be {SIMPLE_CQ} or {BATCH_CQ}",
                path=root / TOPICS_FILE,
            )
        kinds[topic.encode()] = declared
    return kinds


def batch_topics(
    declared: Mapping[bytes, str], former_topics: frozenset[bytes]
) -> frozenset[bytes]:
    """The topics with batch queues: those declared so, and those of ``former_topics``, which had
    them before, that are not declared at all."""
    topics = {topic for topic, kind in declared.items() if kind == BATCH_CQ}
    return frozenset(topics | (former_topics - declared.keys()))


def find_batch_topics(root: Path, output: Path) -> frozenset[bytes]:
    """The topics of the store at ``root`` that have batch queues in ``output``.

    Raises StoreError like ``read_queue_types`` and ``check_queue_types``.
    """
    names = (directory.name for directory in _batch_directories(output))
    topics = (name.encode("utf-8", "surrogateescape") for name in names)
    former_topics = frozenset(topic for topic in topics if topic_directory(topic) is not None)
    current_topics = batch_topics(read_queue_types(root), former_topics)
    check_queue_types(root, output, current_topics)
    return current_topics


def check_queue_types(root: Path, output: Path, topics: frozenset[bytes]) -> None:
    """Refuse an output whose queues are of the wrong kind; ``topics`` have batch queues.

    Raises StoreError, which names a topic, its directory and the command that repairs all of them.
    """
    names = {name for topic in topics if (name := topic_directory(topic)) is not None}
    wrong = [
        (name, BATCH_CQ, directory, SIMPLE_CQ)
        for name in sorted(names)
        if _has_units(directory := output / CONSUME_QUEUE_DIRECTORY / name)
    ]
    wrong += [
        (directory.name, SIMPLE_CQ, directory, BATCH_CQ)
        for directory in _batch_directories(output)
        if directory.name not in names
    ]
    if wrong:
        topic, kind, directory, built_kind = wrong[0]
        name = escaped(topic.encode("utf-8", "surrogateescape"))
        chosen = [word for other, *_ in wrong for word in ("--topic", other)]
        command = command_line("rebuild", root, output, *chosen)
        raise StoreError(
            f"topic {name} has {QUEUE_TYPE}={kind} ({root / TOPICS_FILE}), but {directory} holds "
            f"its queues as {built_kind}; rebuild them: {command}",
            path=directory,
        )


def _batch_directories(output: Path) -> Iterator[Path]:
    """Directories of the topics that have batch queues with units, sorted."""
    root = output / BATCH_CONSUME_QUEUE_DIRECTORY
    yield from filter(_has_units, sorted(root.iterdir()) if root.is_dir() else ())


def _has_units(topic: Path) -> bool:
    # a file is created together with its first units
    return any(is_mapped_file_name(path.name) and path.stat().st_size for path in topic.glob("*/*"))
