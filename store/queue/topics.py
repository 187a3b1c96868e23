"""The topics that a store or another output knows: a mistyped name must not look like a topic
without messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

from reput.store.commandline import command_line
from reput.store.errors import UsageError
from reput.store.files import TOPICS_FILE
from reput.store.names import escaped
from reput.store.queue.kinds import list_all_queues
from reput.store.queue.queuetype import read_queue_types

_NEAR_COUNT, _NEAR_ENOUGH = 3, 0.6


def topics_with_queues(root: Path) -> set[str]:
    """The topics with queues of either kind below the root of a store or another output."""
    return {key.topic for key, _ in list_all_queues(root)}


def known_topics(roots: Iterable[Path]) -> set[str]:
    """The topics with queues below some roots of stores and outputs, and those that a store there
    declares. Raises UsageError if a declaration cannot be read."""
    topics: set[str] = set()
    for root in roots:
        topics |= topics_with_queues(root)
        topics.update(topic.decode() for topic in read_queue_types(root))
    return topics


def check_topics(topics: Iterable[str], *roots: Path) -> None:
    """Raise UsageError for a topic that none of the roots knows; the first is the store's, the last
    that of its queues."""
    names = known_topics(roots)
    for topic in topics:
        if topic not in names:
            place = " or ".join(dict.fromkeys(map(str, roots)))
            hint = f"{command_line('status', roots[0], roots[-1])} lists the topics"
            if not names:
                hint = "build queues with reput run, or give the `output=` that has them"
            raise UsageError(
                f"no topic {_shown(topic)} in {place}: it has no queues there and is not in "
                f"{TOPICS_FILE}{near_topics(topic, names)}; {hint}"
            )


def near_topics(topic: str, names: Collection[str]) -> str:
    """The part of an error that names the topics that may have been meant; empty without one."""
    near = difflib.get_close_matches(topic, names, _NEAR_COUNT, _NEAR_ENOUGH)
    return f" (did you mean {' or '.join(map(_shown, near))}?)" if near else ""


def _shown(topic: str) -> str:
    return escaped(topic.encode("utf-8", "surrogateescape"))
