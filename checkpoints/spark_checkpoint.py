"""Spark's checkpoint directory of a streaming query, read without Spark.

    metadata        {"id": uuid}
    offsets/N       "v1", metadata JSON, one offset JSON per source; written before batch N runs.
                    "v2" has NAME:JSON, or NUMBER:JSON, for each source: Spark 4.2 and 4.3 write it
                    where spark.sql.streaming.offsetLog.formatVersion is 2, and 4.3 also where
                    sources are named by name()
    commits/N       "v1" or "v2", JSON; written after batch N ran ("commits log"; RocketMQ's log is
                    the only one called CommitLog here)
    reput-start     ours: where batch 0 begins. Spark asks the source again when it repeats batch
                    0, and the answer may have changed by then: data would be skipped
Spark never syncs these files nor checks them. We do both halves: a directory that does not read
well is moved aside as a whole, since the log and the watermark know everything it knew. One that
is ahead of what is durable loses its last files, and Spark repeats the batches.
"""

from __future__ import annotations

import json
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from reput.store import fsops, jsontext
from reput.store.files import (
    REPLACED_MARK,
    SPARK_COMMITS_DIRECTORY,
    SPARK_METADATA_FILE,
    SPARK_OFFSETS_DIRECTORY,
    SPARK_START_FILE,
)
from reput.store.state.logoffset import offset_json, parse_offset

MAX_FILE_BYTES = 1 << 20
"""A file of Spark's holds a batch's settings and one offset: about a KiB."""
_BATCH_NAME = re.compile(r"[0-9]{1,18}\Z", re.ASCII)
_VERSIONS = ("v1", "v2")
_SOURCE_NAME = re.compile(r"[A-Za-z0-9_]{1,255}:", re.ASCII)


@dataclass(frozen=True, slots=True)
class SparkPosition:
    """The position at which a query would resume."""

    offset: int
    """Log offset at which the next batch begins, whether it is new or repeated."""
    batch_id: int
    """The last batch in the offset log."""
    committed: bool
    """Whether that batch is in the commits log."""
    planned_end: int
    """The offset at which that batch ends."""


class DamagedCheckpointError(Exception):
    """The directory holds something that would stop Spark or make it skip data."""


def read_position(directory: Path, store_id: str) -> SparkPosition | None:
    """Return the position of the query in ``directory``; None for a directory without a batch.

    Raises DamagedCheckpointError for damage and for another store's checkpoint.
    """
    return next(iter(read_positions(directory, store_id)), None)


def read_positions(directory: Path, store_id: str) -> list[SparkPosition]:
    """Return the query's position, then every earlier position to which ``rewind`` can bring it.

    Raises DamagedCheckpointError for damage and for another store's checkpoint.
    """
    offsets = batch_files(directory / SPARK_OFFSETS_DIRECTORY)
    commits = batch_files(directory / SPARK_COMMITS_DIRECTORY)
    if not offsets and not commits and not (directory / SPARK_METADATA_FILE).exists():
        return []
    metadata = _json((directory / SPARK_METADATA_FILE), "{}")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("id"), str):
        raise DamagedCheckpointError("metadata has no query id")
    ends = {batch: read_planned(path, store_id)[0] for batch, path in offsets.items()}
    for path in commits.values():
        check_commit(path)
    if not ends:
        if commits:
            raise DamagedCheckpointError("commits without offsets")
        return []
    last = max(ends)
    if commits and max(commits) not in (last, last - 1):
        raise DamagedCheckpointError(f"batch {last} has offsets, the last commit is {max(commits)}")
    if last > 0 and last - 1 not in ends:
        raise DamagedCheckpointError(f"offsets of batch {last - 1} are missing")
    if last > 0 and last not in commits and last - 1 not in commits:
        raise DamagedCheckpointError(f"commit of batch {last - 1} is missing")
    positions: list[SparkPosition] = []
    for batch in range(last, -1, -1):
        if batch in commits and (batch == 0 or batch - 1 in ends):
            positions.append(SparkPosition(ends[batch], batch, True, ends[batch]))
        before = ends.get(batch - 1) if batch - 1 in commits else None
        if batch == 0:
            before = read_start(directory, store_id)
        if before is None or before > ends[batch]:
            break
        positions.append(SparkPosition(before, batch, False, ends[batch]))
    if not positions:
        raise DamagedCheckpointError("the start of the unfinished batch is unknown")
    return positions


def rewind(directory: Path, position: SparkPosition) -> None:
    """Remove the files of all batches after ``position``, the last files first; then checksums
    whose files are gone, also those that were lost before."""
    first_commit = position.batch_id + position.committed
    offsets = batch_files(directory / SPARK_OFFSETS_DIRECTORY)
    commits = batch_files(directory / SPARK_COMMITS_DIRECTORY)
    for batch in range(max(offsets, default=-1), position.batch_id - 1, -1):
        if batch >= first_commit and batch in commits:
            fsops.unlink(commits[batch])
        if batch > position.batch_id:
            fsops.unlink(offsets[batch])
    for name in (SPARK_OFFSETS_DIRECTORY, SPARK_COMMITS_DIRECTORY):
        _remove_lone_checksums(directory / name)


def _remove_lone_checksums(directory: Path) -> None:
    """Remove the checksums of batches that are gone, which Hadoop's local file system may have
    written: Spark takes one for another query's file, and stops."""
    for path in sorted(directory.glob(".*.crc")):
        name = path.name[1 : -len(".crc")]
        if _BATCH_NAME.match(name) and not path.with_name(name).exists():
            fsops.unlink(path)


def read_start(directory: Path, store_id: str) -> int | None:
    """Return the pinned start; None where it is missing, damaged or another store's."""
    try:
        return parse_offset(_text(directory / SPARK_START_FILE), store_id)
    except DamagedCheckpointError:
        return None


def pin_start(directory: Path, root: Path, store_id: str, offset: int) -> None:
    """Pin the offset at which batch 0 begins, before the query starts."""
    fsops.make_directories(directory, root)
    fsops.replace_file(
        directory / SPARK_START_FILE, json.dumps(offset_json(store_id, offset)).encode()
    )


def move_aside(directory: Path) -> Path:
    """Rename the directory to ``NAME.replaced-N``, so that none of its content is lost."""
    number = 1
    while (target := directory.with_name(f"{directory.name}{REPLACED_MARK}{number}")).exists():
        number += 1
    fsops.rename(directory, target)
    return target


def batch_files(directory: Path, *, skip_others: bool = False) -> dict[int, Path]:
    """Return the files of ``offsets`` or ``commits`` by batch; hidden ones are no batches. Raises
    DamagedCheckpointError for any other name, unless those are skipped."""
    if not directory.is_dir():
        return {}
    paths = {}
    for path in directory.iterdir():
        if _BATCH_NAME.match(path.name):
            paths[int(path.name)] = path
        elif not path.name.startswith(".") and not skip_others:
            raise DamagedCheckpointError(f"{path.parent.name}/{path.name} is not a batch")
    return paths


def _text(path: Path) -> str:
    """The text of one of the directory's files, which are small; it may come from anywhere."""
    name = f"{path.parent.name}/{path.name}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise DamagedCheckpointError(
                f"{name} is no file of up to {MAX_FILE_BYTES:,} bytes, as Spark writes it"
            )
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedCheckpointError(f"{name}: {error}") from error


def _json(path: Path, kind: str) -> object:
    try:
        return jsontext.parse(_text(path))
    except ValueError as error:
        raise DamagedCheckpointError(f"{path.parent.name}/{path.name}: no {kind}") from error


def _version_and_json(path: Path) -> list[str]:
    """Return the lines, of which the first is the version, and the second a JSON object."""
    lines = _text(path).splitlines()
    if len(lines) < 2 or lines[0] not in _VERSIONS:
        raise DamagedCheckpointError(f"{path.parent.name}/{path.name} is cut or of another version")
    try:
        if not isinstance(jsontext.parse(lines[1]), dict):
            raise ValueError(lines[1])
    except ValueError as error:
        raise DamagedCheckpointError(f"{path.parent.name}/{path.name}: no JSON object") from error
    return lines


def read_planned(path: Path, store_id: str) -> tuple[int, int | None]:
    """Return where a file of ``offsets`` says that its batch ends, and when Spark planned it, in
    ms. Raises DamagedCheckpointError."""
    lines = _version_and_json(path)
    offset = parse_offset(_offset_text(lines), store_id) if len(lines) == 3 else None
    if offset is None:
        raise DamagedCheckpointError(f"offsets/{path.name} is damaged or another store's")
    planned = jsontext.parse(lines[1]).get("batchTimestampMs")
    return offset, planned if type(planned) is int else None


def _offset_text(lines: list[str]) -> str:
    """Return the offset of the only source; empty where the source of a "v2" has no name."""
    version, _, text = lines
    if version == _VERSIONS[0]:
        return text
    name = _SOURCE_NAME.match(text)
    return text[name.end() :] if name else ""


def check_commit(path: Path) -> None:
    """Raises DamagedCheckpointError where a file of ``commits`` is not as Spark writes it."""
    _version_and_json(path)
