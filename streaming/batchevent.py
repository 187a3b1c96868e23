"""The one event of the log for each batch: its range, its messages and the time of each stage.

It is logged when the batch is committed, at level debug, since a live log has several a second; or
when it fails, and then says the cause first. Its fields have the same names in text and in JSON,
which ``reput.cli.render`` writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from reput.store.errors import ReputError
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.measures import Measures
from reput.streaming.progress import milliseconds
from reput.streaming.spark.errors import error_of_ours, first_line

COLLECT = ("collect",)
COMMIT = ("commit", "write", "sync", "ledger", "watermark")
"""A step's stages: the whole of it, then its parts."""

logger = logging.getLogger("reput")


class BatchEvent:
    """The event of one batch, which one thread collects and another one commits, in pieces."""

    def __init__(
        self, measures: Measures, batch_id: int | None, start: int, end: int | None
    ) -> None:
        """[start, end) is the range that is planned; ``end`` is None where only Spark's tasks know
        it, and ``batch_id`` for a step that Spark has not planned."""
        self._measures = measures
        self._fields: dict[str, object] = {"batch_id": batch_id, "start": start, "end": end}
        self.stages: dict[str, float] = {}
        """Seconds that each stage of the batch has taken so far."""
        self._counts: DispatchCounts | None = None
        """The counts of what is committed of it; None while nothing is."""

    @contextmanager
    def step(self, stages: tuple[str, ...]) -> Iterator[None]:
        """Measure a ``with`` block as the first of the stages, and note how long each took."""
        measured = [self._measures.stage(name) for name in stages]
        before = [stage.sum for stage in measured]
        try:
            with measured[0].measured():
                yield
        finally:
            for name, stage, sum_before in zip(stages, measured, before, strict=True):
                self.stages[name] = self.stages.get(name, 0.0) + stage.sum - sum_before

    def note_committed(self, start: int, end: int, counts: DispatchCounts) -> None:
        """Note that a piece of the batch, [start, end), is committed."""
        if self._counts is None:
            self._counts = DispatchCounts()
            self._fields["start"] = start
        self._counts.add(counts)
        self._fields["end"] = end

    def log_committed(self) -> None:
        """Log what is committed of the batch: all, unless the run was stopped meanwhile."""
        counts = self._counts
        if counts is not None and logger.isEnabledFor(logging.DEBUG):
            fields = {
                **self._fields, "messages": counts.messages, "duplicates": counts.duplicates,
                "quarantined_bytes": counts.quarantined_bytes,
            }  # fmt: skip
            logger.debug("batch", extra={"fields": fields | milliseconds(self.stages)})

    def log_failed(self, error: BaseException) -> None:
        """Log that the batch failed, with the cause before everything else."""
        ours = error if isinstance(error, ReputError) else error_of_ours(error)
        cause = " ".join((str(ours) if ours is not None else first_line(error)).split())
        fields = {"cause": cause, **self._fields, **milliseconds(self.stages)}
        logger.error("batch failed", extra={"fields": fields})
