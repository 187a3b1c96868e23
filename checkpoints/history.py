"""The batches that Spark's checkpoint still lists, with every damage in it, read without Spark.

Spark keeps the last ten or a few more. ``spark_checkpoint`` finds where a query goes on, and gives
a directory up at the first damage; this module reads what can still be read, for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reput.checkpoints import spark_checkpoint
from reput.checkpoints.spark_checkpoint import DamagedCheckpointError
from reput.store.files import SPARK_COMMITS_DIRECTORY, SPARK_OFFSETS_DIRECTORY, SPARK_START_FILE


@dataclass(frozen=True, slots=True)
class Batch:
    """One planned batch: the range [start, end) of the log."""

    batch_id: int
    start: int | None
    """None where the batch before it is not known any more."""
    end: int
    is_committed: bool
    """Whether it is in Spark's commits log."""
    planned_ms: int | None
    """Time at which Spark planned it, in ms; None if the file does not tell."""


@dataclass(frozen=True, slots=True)
class History:
    """The batches of a checkpoint, the oldest first, and its damage, a line for each finding."""

    batches: tuple[Batch, ...]
    damage: tuple[str, ...]

    def batch(self, batch_id: int) -> Batch | None:
        """Return a batch by its number; None if the checkpoint does not list it."""
        return next((batch for batch in self.batches if batch.batch_id == batch_id), None)


def read_history(directory: Path, store_id: str) -> History:
    """Return the batches of the checkpoint in ``directory``, which may be missing."""
    damage: list[str] = []
    offsets, commits = (
        _batch_files(directory / name, damage)
        for name in (SPARK_OFFSETS_DIRECTORY, SPARK_COMMITS_DIRECTORY)
    )
    ends: dict[int, tuple[int, int | None]] = {}
    for batch_id, path in offsets.items():
        try:
            ends[batch_id] = spark_checkpoint.read_planned(path, store_id)
        except DamagedCheckpointError as error:
            damage.append(str(error))
    committed = set()
    for batch_id, path in commits.items():
        try:
            spark_checkpoint.check_commit(path)
            committed.add(batch_id)
        except DamagedCheckpointError as error:
            damage.append(str(error))
    first = spark_checkpoint.read_start(directory, store_id)
    if 0 in offsets and first is None:
        damage.append(f"{SPARK_START_FILE} is missing, damaged or another store's")
    batches = []
    for batch_id, (end, planned_ms) in sorted(ends.items()):
        start = first if batch_id == 0 else ends.get(batch_id - 1, (None, None))[0]
        if start is not None and start > end:
            damage.append(
                f"{SPARK_OFFSETS_DIRECTORY}/{batch_id} ends at {end}, before its start {start}"
            )
            start = None
        batches.append(Batch(batch_id, start, end, batch_id in committed, planned_ms))
    try:
        # what Spark makes of all files together
        spark_checkpoint.read_positions(directory, store_id)
    except DamagedCheckpointError as error:
        if str(error) not in damage:
            damage.append(str(error))
    return History(tuple(batches), tuple(damage))


def _batch_files(directory: Path, damage: list[str]) -> dict[int, Path]:
    try:
        return spark_checkpoint.batch_files(directory)
    except DamagedCheckpointError as error:
        damage.append(str(error))
    return spark_checkpoint.batch_files(directory, skip_others=True)
