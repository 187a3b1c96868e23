"""Tag expressions: ``*`` or an empty one for all messages, else ``TagA || TagB``.

The broker compares hashes of whole TAGS values, because a consume queue unit holds nothing else.
The client then compares the texts, which removes collisions. A reader that does both gives the
messages that a consumer gets. Source: RocketMQ 5.3.3 ``FilterAPI.buildSubscriptionData``,
``DefaultMessageFilter``, ``PullAPIWrapper.processPullResult``; formats.md §10.
"""

from __future__ import annotations

from dataclasses import dataclass

from reput.filters.java import hash_code, trim

SUB_ALL = "*"
SEPARATOR = "||"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """One subscription by tags."""

    takes_all: bool
    tags: frozenset[str]
    codes: frozenset[int]
    """Signed 32-bit hashes of ``tags``."""

    def matches_code(self, tags_code: int | None) -> bool:
        """The broker's test of the low 32 bits of a unit's i64 tagsCode.

        None (the address of an ext unit that is gone) matches.
        """
        if self.takes_all or tags_code is None:
            return True
        return ((tags_code + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) in self.codes

    def matches_tags(self, tags: str | None) -> bool:
        """The client's test of a message's TAGS; None if the message has none."""
        return not self.tags or tags in self.tags


def parse(expression: str | None) -> TagFilter:
    """Parse a tag expression into a subscription.

    Raises ValueError for an expression of separators only, which RocketMQ refuses too. Like
    RocketMQ, it accepts an expression of blanks only, whose codes match nothing.
    """
    if not expression or expression == SUB_ALL:
        return TagFilter(True, frozenset(), frozenset())
    if not expression.replace(SEPARATOR, ""):
        raise ValueError(f"tag expression {expression!r} names no tag; give * for all")
    tags = frozenset(filter(None, map(trim, expression.split(SEPARATOR))))
    return TagFilter(False, tags, frozenset(map(hash_code, tags)))
