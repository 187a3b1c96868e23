"""A batch is planned, scanned and written by the same settings, whatever a broker writes meanwhile.

Driven as the streaming query drives it, without Spark; tests/interop has a real broker.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.reconcile import make_plan
from reput.sources.commitlog import CommitLogStreamReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.store.config import read_store_settings
from reput.store.errors import StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.runs.dispatch import DispatchBatch
from reput.store.runs.packed import unpack
from reput.store.runs.packedschema import PACKED_SCHEMA
from reput.store.runs.scan import assemble
from reput.store.state.logoffset import offset_json
from reput.streaming.commit import Committer
from reput.streaming.followers import Followers
from reput.streaming.indexes import Indexes
from reput.workload.appender import Appender
from tests.support.batch_queue import messages_of, model_of, model_tree
from tests.support.configs import configured
from tests.support.golden import tree


class Query:
    """A reader and a writer of one store, as a query has them, and the broker's side."""

    def __init__(self, directory: Path) -> None:
        self.store, self.output = directory / "store", directory / "output"
        (self.store / "config").mkdir(parents=True)
        self._position = 0

    def __enter__(self) -> Query:
        self._appender = Appender(self.store, file_size=1 << 16).__enter__()
        self._append(b"First")
        settings = read_store_settings(self.store)
        config = configured(self.store, self.output, index=False)
        self._owned = Ownership(self.output).__enter__()
        self.indexes = Indexes.of(config, settings)
        log = CommitLog(settings.commit_log_directories)
        built = BuiltOutput(self.output, replace(settings, message_index_enable=False))
        plan = make_plan(log, LogTail(log).settled(), None, config.spark_directory, built)
        self._id = plan.watermark.store_id
        followers = Followers(config, settings, self._id)
        self.committer = Committer(config, self.indexes, log, followers)
        self.committer.take_over(plan)
        options = {
            "path": str(self.store), "mode": "runs", "storeId": self._id,
            "gather": self.indexes.extras.to_text(),
        }  # fmt: skip
        # ``StructType.fromDDL`` asks a JVM
        schema = from_arrow_schema(PACKED_SCHEMA)
        self._reader = CommitLogStreamReader(CommitLogOptions(options), schema)
        return self

    def __exit__(self, *_error: object) -> None:
        self.committer.close()
        self._owned.__exit__(None, None, None)
        self._appender.__exit__(None, None, None)

    def declare(self, **kinds: str) -> None:
        topics = {name: {"attributes": {"queue.type": kind}} for name, kind in kinds.items()}
        path = self.store / "config" / "topics.json"
        path.write_text(json.dumps({"topicConfigTable": topics}))

    def _append(self, *topics: bytes) -> None:
        for index in range(20):
            for topic in topics:
                self._appender.append(Record(topic=topic, queue_id=index % 2, body=b"body"))

    def plan(self, *topics: bytes) -> list[bytes]:
        """Messages of topics come; the partitions of the batch that has them, as tasks get them."""
        self._append(*topics)
        ends = (self._position, self._appender.end_offset)
        self._position = ends[1]
        start, end = (offset_json(self._id, offset) for offset in ends)
        return [pickle.dumps(part) for part in self._reader.partitions(start, end)]

    def read(self, partitions: list[bytes]) -> DispatchBatch:
        """One batch as the tasks and the driver make it."""

        def rows() -> Iterator[object]:
            for part in partitions:
                with closing(pickle.loads(pickle.dumps(self._reader))._store()[1]):
                    yield from self._reader.read(pickle.loads(part))

        batch = assemble(unpack(rows()))  # type: ignore[arg-type]
        assert batch is not None
        return batch

    def topics(self, kind: str) -> set[str]:
        return {name.split("/")[0] for name in tree(self.output / kind)}


def test_a_batch_has_the_settings_of_its_end_everywhere(ram_path: Path) -> None:
    """A topic is declared before its first message: the batch with it has batch units, RocketMQ's
    bytes. What is written after the plan counts from the next batch on, on which the dispatcher
    then stops, since the topic has queues of the other kind; nothing of it is written."""
    with Query(ram_path) as query:
        query.committer.commit(query.read(query.plan(b"First")))
        query.declare(First="SimpleCQ", Lots="BatchCQ")
        planned = query.plan(b"First", b"Lots")
        query.declare(First="BatchCQ", Lots="BatchCQ")
        query.committer.commit(query.read(planned))
        assert query.topics("consumequeue") == {"First"}
        settings = query.indexes.settings
        messages = messages_of(query.store, settings.message_delay_levels_ms)
        size = settings.mapper_file_size_batch_consume_queue
        expected = model_tree(model_of(messages, frozenset({b"Lots"}), size))
        assert tree(query.output / "batchconsumequeue") == expected
        assert len(expected) == 2
        before = tree(query.output)
        with pytest.raises(StoreError, match=r"reput rebuild .* --topic First$"):
            query.committer.commit(query.read(query.plan(b"First", b"Lots")))
        assert tree(query.output) == before
        # a topic that is no longer declared has been deleted, and keeps its kind
        query.declare(First="SimpleCQ")
        batch = query.read(query.plan(b"Lots"))
        assert batch.batch_topics == {b"Lots"}
