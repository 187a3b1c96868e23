"""docs/reference/rocketmq-settings.md, read back as a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "rocketmq-settings.md"
VERDICTS = ("honoured", "refused", "of no effect")
_ROW = re.compile(r"\| `(\w+)` \| (?:`(.*?)`)? \| ([0-9.]*) \| ([\w ]+) \| (.*) \|")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting's row on the page."""

    default: str
    since: str
    """Empty for one that RocketMQ 5.3.3 has."""
    verdict: str


def rows() -> dict[str, Setting]:
    """The settings in tables, by name."""
    found: dict[str, Setting] = {}
    for line in _before_the_rest().splitlines():
        if line.startswith("| `"):
            match = _ROW.fullmatch(line)
            assert match is not None, line
            name, default, since, verdict, _ = match.groups()
            assert name not in found, name
            assert verdict in VERDICTS, line
            found[name] = Setting(default or "", since, verdict)
    return found


def others() -> list[str]:
    """The settings of no effect that are listed by name alone."""
    return re.findall(r"`(\w+)`[,\n]", _text().removeprefix(_before_the_rest()))


def _before_the_rest() -> str:
    return _text().partition("## Everything else")[0]


def _text() -> str:
    return PAGE.read_text("utf-8")
