"""Keeps positions and Spark's checkpoints aside, as they were before a rewind or a start.

    reput/rewound-N/rewind.json     when the rewind was, from where and to where
    reput/rewound-N/watermark, quarantine.jsonl, followers/
    reput/rewound-N/checkpoint      RocketMQ's checkpoint of the output
    reput/rewound-N/spark/          Spark's checkpoint
    NAME.replaced-N                 Spark's checkpoint NAME, which a start has moved aside whole

A copy has its name only when all of it is durable. Nothing reads it again; it shows what was there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from reput.checkpoints import FOLLOWERS_DIRECTORY, SPARK_DIRECTORY, STATE_DIRECTORY
from reput.checkpoints.spark_checkpoint import START_NAME
from reput.store import fsops, jsontext
from reput.store.state.ledger import FILE_NAME as LEDGER
from reput.store.state.storecheckpoint import FILE_NAME as STORE_CHECKPOINT
from reput.store.state.watermark import FILE_NAME as WATERMARK

ABOUT_NAME = "rewind.json"
SPARK_FILES = ("metadata", START_NAME, "offsets/*", "commits/*")
"""The files that count of Spark's checkpoint; a wrong ``--checkpoint`` may hold anything else."""
_PARTIAL = "rewound.partial"
_REWOUND = re.compile(r"rewound-([1-9][0-9]{0,8})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeptState:
    """One state that was set aside."""

    path: Path
    bytes: int
    when: str | None = None
    """Time of the rewind, in ISO 8601 and UTC; None where it is not known."""
    from_offset: int | None = None
    """The watermark before the rewind."""
    to_offset: int | None = None


def list_kept(output: Path, spark_directory: Path) -> list[KeptState]:
    """Return what is kept of an output: rewinds by number, then Spark's checkpoints."""
    found = []
    for path in sorted(_rewound(output / STATE_DIRECTORY), key=_number):
        try:
            about = jsontext.parse((path / ABOUT_NAME).read_text("utf-8"))
            offsets = int(about["from"]), int(about["to"])
            found.append(KeptState(path, _size(path), str(about["time"]), *offsets))
        except (OSError, ValueError, KeyError, TypeError):
            found.append(KeptState(path, _size(path)))
    return found + [KeptState(path, _size(path)) for path in replaced_checkpoints(spark_directory)]


def keep_state(output: Path, spark_directory: Path, from_offset: int, to_offset: int) -> Path:
    """Copy all positions of an output durably, and return the copy's directory. Only the owner of
    the output may call it. Raises OutputError, after which nothing has changed."""
    state = output / STATE_DIRECTORY
    partial = state / _PARTIAL
    fsops.remove_tree(partial)
    sources = [state / WATERMARK, state / LEDGER, output / STORE_CHECKPOINT]
    copies = [(source, partial / source.name) for source in sources]
    for path in (state / FOLLOWERS_DIRECTORY).glob("*.json"):
        copies.append((path, partial / FOLLOWERS_DIRECTORY / path.name))
    for pattern in SPARK_FILES:
        for path in spark_directory.glob(pattern):
            copies.append((path, partial / SPARK_DIRECTORY / path.relative_to(spark_directory)))
    fsops.create_directories(partial, state)
    for source, copy in copies:
        if source.is_file():
            fsops.create_directories(copy.parent, state)
            fsops.write_new_file(copy, source.read_bytes())
    when = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"time": when, "from": from_offset, "to": to_offset}
    fsops.write_new_file(partial / ABOUT_NAME, json.dumps(about).encode())
    fsops.sync_file_system_of(partial)
    number = 1 + max(map(_number, _rewound(state)), default=0)
    kept = state / f"rewound-{number}"
    fsops.rename(partial, kept)
    return kept


def drop_kept(output: Path, spark_directory: Path) -> list[KeptState]:
    """Remove what is kept of an output and return it. Only the owner of the output may call it."""
    dropped = list_kept(output, spark_directory)
    for one in dropped:
        fsops.remove_tree(one.path)
    fsops.remove_tree(output / STATE_DIRECTORY / _PARTIAL)
    return dropped


def _rewound(state: Path) -> Iterator[Path]:
    return (path for path in state.glob("rewound-*") if _REWOUND.match(path.name))


def _number(path: Path) -> int:
    found = _REWOUND.match(path.name)
    return int(found[1]) if found else 0


def replaced_checkpoints(spark_directory: Path) -> list[Path]:
    """Return Spark's checkpoints that a start has moved aside, and that nobody has removed."""
    name = re.compile(rf"{re.escape(spark_directory.name)}\.replaced-[1-9][0-9]{{0,8}}\Z", re.ASCII)
    found = spark_directory.parent.glob("*.replaced-*")
    return sorted(path for path in found if name.match(path.name))


def _size(path: Path) -> int:
    return sum(one.lstat().st_size for one in path.rglob("*") if one.is_file())
