"""The names of a store that a shell completes: its topics and its consumer groups.

A name from the log may hold anything, and a shell acts on some characters once the line is entered;
names with others than letters, digits and ``%_-.`` are not offered. A store that cannot be read has
no names: there is no place for an error here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import typer

from reput.store.errors import ReputError

_HARMLESS = frozenset("%_-.")


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin so: those with queues, and those that the store declares."""
    from reput.store.queue.topics import known_topics  # noqa: PLC0415

    with suppress(ReputError, OSError):
        return _offered(known_topics(_roots(context)), incomplete)
    return []


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin so and have committed an offset."""
    from reput.readers.grouplag import CommittedOffsets  # noqa: PLC0415

    roots = _roots(context)
    with suppress(ReputError, OSError):
        if roots:
            return _offered(CommittedOffsets.read(roots[0], roots[-1]).groups(), incomplete)
    return []


def _roots(context: typer.Context) -> list[Path]:
    """Return the store of the line so far, and its output if that is given before the word."""
    # beside an option that still lacks its value, no argument has been assigned yet
    store = context.params.get("store") or next(iter(context.args), None)
    given = (store, context.params.get("output"))
    return [Path(root) for root in given if root is not None]


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(
        name
        for name in names
        if name.startswith(incomplete)
        and not name.startswith("-")
        and all(character.isalnum() or character in _HARMLESS for character in name)
    )
