"""The content of a served store, and what of it nobody delivers: the lines of a server's start.

A server without an overlay does not deliver messages that wait for a broker
(``readers.inventory``), so it says how many there are. It also says what of the log is in no queue,
at the start and for as long as it is so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from reput.readers.inventory import Inventory, take_inventory
from reput.readers.messagestore import MessageStore
from reput.serving.stores import ServedStore
from reput.store.errors import ReputError, error_text

MOST_NAMED = 5
"""Topics that the line about them names."""
LOOK_SECONDS = 300.0
"""Interval of the looks for messages that are in no queue."""

_BY_DUE_TIME = "only a broker moves them to their topics when they are due"

logger = logging.getLogger("reput")


def lines(inventory: Inventory, *, has_overlay: bool = False) -> Iterator[tuple[int, str]]:
    """The level and text of each line about a store, after its name; an overlay says itself what it
    takes over of what waits."""
    total = sum(inventory.topics.values())
    if not total:
        yield logging.INFO if has_overlay else logging.WARNING, "no topic has a message"
    else:
        largest = sorted(inventory.topics.items(), key=lambda item: (-item[1], item[0]))
        named = ", ".join(f"{name} {count:,}" for name, count in largest[:MOST_NAMED])
        more = f" and {len(largest) - MOST_NAMED:,} more" if len(largest) > MOST_NAMED else ""
        counts = f"{_counted(total, 'message')} in {_counted(len(largest), 'topic')}"
        yield logging.INFO, f"{counts}: {named}{more}"
    if has_overlay:
        return
    waiting = {
        _counted(inventory.delayed, "delayed message"): (inventory.delayed, _BY_DUE_TIME),
        f"up to {_counted(inventory.timed, 'timed message')}": (inventory.timed, _BY_DUE_TIME),
        f"{'up to ' * inventory.are_all_halves}{_counted(inventory.halves, 'half message')}": (
            inventory.halves, "their transactions are open, and only a broker asks their producers",
        ),
    }  # fmt: skip
    for what, (count, why) in waiting.items():
        if count:
            yield logging.WARNING, f"not delivered: {what}: {why}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


async def report(served: ServedStore, *, has_overlay: bool) -> None:
    """Log what a store holds, and then, until cancelled, what of it is in no queue."""
    await asyncio.to_thread(_report_content, served, has_overlay)
    # the process that dispatches knows its own lag
    while served.arrivals is None:
        await asyncio.to_thread(_report_coverage, served)
        await asyncio.sleep(LOOK_SECONDS)


def _report_content(served: ServedStore, has_overlay: bool) -> None:
    name = served.identity.name
    try:
        with _opened(served) as store:
            inventory = take_inventory(store, served.settings.root)
            for level, line in lines(inventory, has_overlay=has_overlay):
                logger.log(level, "broker %s: %s", name, line)
    except (ReputError, OSError) as error:
        logger.warning("broker %s: its content cannot be counted: %s", name, error_text(error))


def _report_coverage(served: ServedStore) -> None:
    name = served.identity.name
    try:
        with _opened(served) as store:
            line = store.note_coverage()
    except (ReputError, OSError) as error:
        logger.warning("broker %s: its queues cannot be compared: %s", name, error_text(error))
        return
    if line is not None:
        logger.warning("broker %s: not served: %s", name, line)


def _opened(served: ServedStore) -> MessageStore:
    """A view of its own, since the broker's is not for other threads."""
    return MessageStore(served.settings.root, output=served.output, settings=served.settings)
