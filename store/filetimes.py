"""Tells whether the time of a file or directory shows its next change as well.

Every reader that lists or reads again only after a change needs this: without it, a change that
follows another one at once would pass unseen.
"""

from __future__ import annotations

_SETTLED_NANOSECONDS = 3_000_000_000
"""Shared file systems store times to a second or two, and clocks of two machines differ a
little."""


def is_settled(changed_ns: int, seen_ns: int) -> bool:
    """Whether a change after ``seen_ns``, when it was looked at, gives what was changed at
    ``changed_ns`` another time; both in ns since the epoch."""
    return changed_ns <= seen_ns - _SETTLED_NANOSECONDS
