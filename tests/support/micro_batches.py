"""The calls that Spark's MicroBatchExecution makes on a source's stream reader, without Spark.

Offsets pass as JSON text, as they do to and from Spark's JVM, and a task gets a pickled reader. A
checkpoint outlives its runs: the planned end of each batch, and how many batches are committed.
What happens at the same time is the caller's ``between``, which is called before each call.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

Rows = list[dict[str, Any]]


@dataclass
class Checkpoint:
    """A query's checkpoint, and what its sink has got."""

    planned: list[str] = field(default_factory=list)
    """The end of each batch, as JSON text."""
    committed: int = 0
    rows: Rows = field(default_factory=list)
    """The rows of all committed batches, in order."""


class Run:
    """One run of a query over its checkpoint."""

    def __init__(
        self,
        reader: Any,
        checkpoint: Checkpoint,
        *,
        available_now: bool = False,
        looks_first: bool = False,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        """``looks_first``: the first offset is asked for before the end is fixed, too."""
        self._reader, self._checkpoint, self._between = reader, checkpoint, between
        if looks_first and not checkpoint.planned:
            self._initial()
        if available_now:
            between()
            reader.prepareForTriggerAvailableNow()
        self.limit: ReadLimit = reader.getDefaultReadLimit()

    def _initial(self) -> str:
        self._between()
        return json.dumps(self._reader.initialOffset())

    def _start(self, batch: int) -> str:
        """Where a batch begins: Spark keeps no start of the first one, and asks again."""
        return self._checkpoint.planned[batch - 1] if batch else self._initial()

    def plan(self) -> bool:
        """Plan the next batch, unless one is planned already; False where there is none."""
        known = self._checkpoint
        if len(known.planned) > known.committed:
            return True
        start = self._start(known.committed)
        self._between()
        end = json.dumps(self._reader.latestOffset(json.loads(start), self.limit))
        self._between()
        json.dumps(self._reader.reportLatestOffset())
        if end == start:
            return False
        known.planned.append(end)
        return True

    def read(self) -> Rows:
        """The rows of the planned batch, which is not committed yet."""
        batch = self._checkpoint.committed
        if batch:
            self._between()
            self._reader.commit(json.loads(self._checkpoint.planned[batch - 1]))
        start = self._start(batch)
        end = json.loads(self._checkpoint.planned[batch])
        self._between()
        parts = self._reader.partitions(json.loads(start), end)
        text = pickle.dumps(self._reader)
        self._between()
        return [
            row
            for part in parts
            for found in pickle.loads(text).read(pickle.loads(pickle.dumps(part)))
            for row in found.to_pylist()
        ]

    def batch(self) -> Rows | None:
        """Plan, read and commit a batch; None where there is nothing to plan."""
        if not self.plan():
            return None
        rows = self.read()
        self._checkpoint.rows += rows
        self._checkpoint.committed += 1
        return rows

    def all(self) -> Rows:
        """Batches until there is nothing to plan; their rows."""
        rows: Rows = []
        while (found := self.batch()) is not None:
            rows += found
        self._reader.stop()
        return rows


def some_batches(
    rng: random.Random, open_reader: Callable[..., Any], checkpoint: Checkpoint
) -> Rows:
    """The rows of a run with or without a limit, which ends after some batches; the last one may
    be planned and not read."""
    limit = {"maxOffsetsPerTrigger": rng.choice((7, 30))} if rng.random() < 0.5 else {}
    query = Run(open_reader(**limit), checkpoint, available_now=rng.random() < 0.5)
    rows: Rows = []
    for _ in range(rng.choice((1, 2, 100))):
        if not query.plan() or rng.random() < 0.2:
            break
        rows += query.batch() or []
    return rows


def plain(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    """An offset of queues without its evidence: Kafka's form."""
    return {topic: queues for topic, queues in offset.items() if topic != "/evidence"}
