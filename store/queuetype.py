"""Which topics have batch queues: what the broker's topics declare, and what the disk holds.

The topic attribute ``queue.type`` decides which of two kinds of queue RocketMQ builds, SimpleCQ
where it says nothing or the topic is unknown. Source: RocketMQ 5.3.3 ``QueueTypeUtils``,
``TopicAttributes``, ``ConsumeQueueStore.queueTypeShouldBe``; format.md §1 and §7.
"""

from __future__ import annotations

from pathlib import Path

from store import configjson
from store.batchconsumequeue import BATCH_CONSUME_QUEUE_DIRECTORY
from store.commitlog import is_mapped_file_name
from store.consumequeue import CONSUME_QUEUE_DIRECTORY, topic_directory
from store.errors import UsageError
from store.ledger import escaped

TOPICS_FILE = Path("config") / "topics.json"
QUEUE_TYPE = "queue.type"
BATCH_CQ = "BatchCQ"
SIMPLE_CQ = "SimpleCQ"


def read_batch_topics(root: Path) -> frozenset[bytes]:
    """The topics of the store at ``root`` that are declared ``queue.type=BatchCQ``; none where it
    has no ``config/topics.json``.

    Raises UsageError where the file cannot be read or names another kind of queue.
    """
    path = root / TOPICS_FILE
    document = configjson.read(path)
    if document is None:
        return frozenset()
    topics = document.get("topicConfigTable") if isinstance(document, dict) else None
    if not isinstance(topics, dict):
        raise UsageError(f"{path} has no topicConfigTable; restore it from the broker's config")
    found = set()
    for topic, config in topics.items():
        # a topic that was created before RocketMQ 5 has no attributes
        attributes = config.get("attributes") if isinstance(config, dict) else None
        declared = (attributes or {}).get(QUEUE_TYPE, SIMPLE_CQ)
        if declared not in (SIMPLE_CQ, BATCH_CQ):
            raise UsageError(
                f"topic {escaped(topic.encode())} in {path} has {QUEUE_TYPE}={declared}; "
                f"it must be {SIMPLE_CQ} or {BATCH_CQ}"
            )
        if declared == BATCH_CQ:
            found.add(topic.encode())
    return frozenset(found)


def check_queue_types(output: Path, batch_topics: frozenset[bytes]) -> None:
    """Refuse an output in which a topic's queues are of the kind that it is not declared as.

    Raises UsageError, which names the topic, the declaration and the directory.
    """
    names = {name for topic in batch_topics if (name := topic_directory(topic)) is not None}
    for name in sorted(names):
        directory = output / CONSUME_QUEUE_DIRECTORY / name
        if _has_units(directory):
            raise _mismatch(name, BATCH_CQ, directory, SIMPLE_CQ)
    root = output / BATCH_CONSUME_QUEUE_DIRECTORY
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        if directory.name not in names and _has_units(directory):
            raise _mismatch(directory.name, SIMPLE_CQ, directory, BATCH_CQ)


def _has_units(topic: Path) -> bool:
    # files come with their first units
    return any(is_mapped_file_name(path.name) and path.stat().st_size for path in topic.glob("*/*"))


def _mismatch(topic: str, declared: str, directory: Path, found: str) -> UsageError:
    name = escaped(topic.encode("utf-8", "surrogateescape"))
    return UsageError(
        f"topic {name} is declared {QUEUE_TYPE}={declared} in {TOPICS_FILE} (SimpleCQ where it "
        f"says nothing), but {directory} holds {found} queues of it; correct the declaration, or "
        "remove the directory and replay from earliest"
    )
