"""A comparison of two stores as people read it, for ``diff`` and ``rebuild``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reput.cli.printer import Record
from reput.upkeep.compare import Comparison, StoreDifference
from reput.upkeep.entryfields import fields_text


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a line per kind: how much was compared and how much of it differs."""
    different = Counter(difference.kind for difference in comparison.differences)
    for kind, count in comparison.compared.items():
        differing = different[kind]
        verb = "differs" if differing == 1 else "differ"
        result = f"{differing:,} {verb}" if differing else "equal"
        yield f"{kind:20} {count:,} compared, {result}"


def difference_records(
    differences: Sequence[StoreDifference], left: object, right: object
) -> Iterator[Record]:
    """Yield each entry that differs as both sides have it; ``left`` and ``right`` name them."""
    for difference in differences:
        sides = {str(left): fields_text(difference.left), str(right): fields_text(difference.right)}
        yield Record(
            " ".join(filter(None, (difference.kind, difference.place, difference.entry))),
            sides,
            True,
        )
