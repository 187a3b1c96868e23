"""Tag expressions: ``*`` or nothing for all, else ``TagA || TagB``.

The broker compares hashes of whole TAGS values (a consume queue unit holds nothing else), the
client then the texts, which removes collisions; a reader that does both gives what a consumer
gets. Source: RocketMQ 5.3.3 ``FilterAPI.buildSubscriptionData``, ``DefaultMessageFilter``,
``PullAPIWrapper.processPullResult``; formats.md §10.
"""

from __future__ import annotations

from dataclasses import dataclass

from filters.java import hash_code, trim

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
        """The broker's test of a unit's i64 tagsCode, its low 32 bits; None (an ext address whose
        unit is gone) matches."""
        if self.takes_all or tags_code is None:
            return True
        return ((tags_code + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) in self.codes

    def matches_tags(self, tags: str | None) -> bool:
        """The client's test of a message's TAGS; None: it has none."""
        return not self.tags or tags in self.tags


def parse(expression: str | None) -> TagFilter:
    """The subscription that an expression states.

    Raises ValueError for one of separators only, as RocketMQ refuses it. One of blanks only is
    accepted, as there, and its codes match nothing.
    """
    if not expression or expression == SUB_ALL:
        return TagFilter(True, frozenset(), frozenset())
    if not expression.replace(SEPARATOR, ""):
        raise ValueError(f"tag expression {expression!r} names no tag; give * for all")
    tags = frozenset(filter(None, map(trim, expression.split(SEPARATOR))))
    return TagFilter(False, tags, frozenset(map(hash_code, tags)))
