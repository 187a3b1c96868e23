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

from reput.store import fsops, jsontext
from reput.store.files import (
    FOLLOWERS_DIRECTORY,
    LEDGER_FILE,
    PARTIAL_REWOUND_DIRECTORY,
    REPLACED_MARK,
    REWIND_FILE,
    REWOUND_PREFIX,
    SPARK_COMMITS_DIRECTORY,
    SPARK_DIRECTORY,
    SPARK_METADATA_FILE,
    SPARK_OFFSETS_DIRECTORY,
    SPARK_START_FILE,
    STATE_DIRECTORY,
    STORE_CHECKPOINT_FILE,
    WATERMARK_FILE,
)

SPARK_FILES = (
    SPARK_METADATA_FILE, SPARK_START_FILE, f"{SPARK_OFFSETS_DIRECTORY}/*",
    f"{SPARK_COMMITS_DIRECTORY}/*",
)  # fmt: skip
"""The files that count of Spark's checkpoint; a wrong ``--checkpoint`` may hold anything else."""
_REWOUND = re.compile(rf"{REWOUND_PREFIX}([1-9][0-9]{{0,8}})\Z", re.ASCII)


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
    kept_states = []
    for path in sorted(_rewound(output / STATE_DIRECTORY), key=_number):
        try:
            about = jsontext.parse((path / REWIND_FILE).read_text("utf-8"))
            offsets = int(about["from"]), int(about["to"])
            kept_states.append(KeptState(path, _size(path), str(about["time"]), *offsets))
        except (OSError, ValueError, KeyError, TypeError):
            kept_states.append(KeptState(path, _size(path)))
    return kept_states + [
        KeptState(path, _size(path)) for path in replaced_checkpoints(spark_directory)
    ]


def keep_state(output: Path, spark_directory: Path, from_offset: int, to_offset: int) -> Path:
    """Copy all positions of an output durably, and return the copy's directory. Only the owner of
    the output may call it. Raises OutputError, after which nothing has changed."""
    state = output / STATE_DIRECTORY
    partial = state / PARTIAL_REWOUND_DIRECTORY
    fsops.remove_tree(partial)
    sources = [state / WATERMARK_FILE, state / LEDGER_FILE, output / STORE_CHECKPOINT_FILE]
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
    fsops.write_new_file(partial / REWIND_FILE, json.dumps(about).encode())
    fsops.sync_file_system_of(partial)
    number = 1 + max(map(_number, _rewound(state)), default=0)
    kept = state / f"{REWOUND_PREFIX}{number}"
    fsops.rename(partial, kept)
    return kept


def drop_kept(output: Path, spark_directory: Path) -> list[KeptState]:
    """Remove what is kept of an output and return it. Only the owner of the output may call it."""
    dropped = list_kept(output, spark_directory)
    for state in dropped:
        fsops.remove_tree(state.path)
    fsops.remove_tree(output / STATE_DIRECTORY / PARTIAL_REWOUND_DIRECTORY)
    return dropped


def _rewound(state: Path) -> Iterator[Path]:
    return (path for path in state.glob(f"{REWOUND_PREFIX}*") if _REWOUND.match(path.name))


def _number(path: Path) -> int:
    match = _REWOUND.match(path.name)
    return int(match[1]) if match else 0


def replaced_checkpoints(spark_directory: Path) -> list[Path]:
    """Return Spark's checkpoints that a start has moved aside, and that nobody has removed."""
    name = re.compile(
        rf"{re.escape(spark_directory.name)}{re.escape(REPLACED_MARK)}[1-9][0-9]{{0,8}}\Z", re.ASCII
    )
    paths = spark_directory.parent.glob(f"*{REPLACED_MARK}*")
    return sorted(path for path in paths if name.match(path.name))


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
