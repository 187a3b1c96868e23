"""Several stores in one application: each ends as it would alone, whatever happens to others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reput.store.errors import UsageError
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming import supervisor
from reput.streaming.config import DispatcherConfig
from reput.streaming.measures import Measures
from reput.streaming.progress import Progress
from reput.streaming.supervisor import LAST_PAUSE_SECONDS, SupervisedStore, Supervisor
from tests.support.golden import difference, unpack_golden
from tests.support.tables import log_end

LONGEST_SECONDS = 120.0


class Following:
    """Stores that are followed into outputs of their own until the test says that it is done."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self._directory = directory
        self._spark = spark
        self.found: dict[str, DispatcherConfig] = {}
        self.refusal: Exception | None = None
        """Raised by a look for stores."""

    def find(self) -> dict[str, DispatcherConfig]:
        """Return what has come, by name."""
        if self.refusal is not None:
            raise self.refusal
        return self.found

    def come(self, *names: str) -> None:
        """Let the supervisor find golden stores."""
        for name in names:
            store = self._directory / name
            if not store.exists():
                unpack_golden(name, self._directory)
            # a backlog, so that Spark has jobs for it
            limit = log_end(store) // 2
            self.found[name] = DispatcherConfig(
                store, self.output(name), max_bytes_per_trigger=limit
            )

    def output(self, name: str) -> Path:
        """The output of a store."""
        return self._directory / "outputs" / name

    def is_complete(self, name: str) -> bool:
        """Whether everything in the store's log is durable."""
        progress = self._store(name).measures.progress
        return progress is not None and progress.end_offset == log_end(self._directory / name)

    def failures(self, name: str) -> int:
        """Failures of a store, one after the other."""
        return self._store(name).failures

    def _store(self, name: str) -> SupervisedStore:
        return next(store for store in self.supervised.stores if store.name == name)

    def run(self, step: Callable[[], bool]) -> Supervisor:
        """Follow until ``step``, which is called again and again, returns True."""
        stop, deadline = threading.Event(), time.monotonic() + LONGEST_SECONDS
        self.supervised = Supervisor(self.find, once=False)

        def show(_progress: object) -> None:
            if step() or time.monotonic() > deadline:
                stop.set()

        self.supervised.run(self._spark, stop, show)
        assert time.monotonic() < deadline, "the test did not come to its end"
        return self.supervised


@pytest.fixture
def following(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Following:
    """Looks for stores all the time, and starts failed ones at once."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.2)
    return Following(tmp_path, spark)


def test_failing_stores_do_not_stop_others_and_recover(
    following: Following, tmp_path: Path, spark: SparkSession
) -> None:
    """One output cannot be made, one log is refused, and one store is gone for good; a sound store
    is caught up meanwhile, also while no look for stores succeeds, and so is one that comes later.
    """
    following.come("plain", "mixed", "wide")
    missing = DispatcherConfig(tmp_path / "missing", following.output("missing"))
    following.found["missing"] = missing
    in_the_way = following.output("mixed")
    in_the_way.parent.mkdir()
    in_the_way.write_text("no directory")
    segment = max((tmp_path / "wide" / "commitlog").iterdir())
    sound = segment.read_bytes()
    segment.write_bytes(sound[:1000])
    failed = [("missing", 2), ("mixed", 2), ("wide", 2)]
    repaired = list[str]()

    def step() -> bool:
        if not repaired:
            following.refusal = UsageError("two stores have one name")
            if following.is_complete("plain") and all(
                following.failures(name) >= times for name, times in failed
            ):
                in_the_way.unlink()
                whole = segment.with_name("whole")
                whole.write_bytes(sound)
                whole.rename(segment)
                following.refusal = None
                del following.found["missing"]
                following.come("killed")
                repaired.append("all")
            return False
        return all(map(following.is_complete, ("plain", "mixed", "wide", "killed")))

    supervised = following.run(step)
    assert [store.name for store in supervised.stores] == ["plain", "mixed", "wide", "killed"]
    for store in supervised.stores:
        output = following.output(store.name)
        assert difference(output / "consumequeue", tmp_path / store.name / "consumequeue") == []
        assert (store.error, store.thread, store.measures.is_failing) == (None, None, False)
        assert not store.config.abort_file.exists(), "a stop ends every run cleanly"
        assert store.summary()["messages"] > 0
    context: Any = spark.sparkContext
    assert context._jsc.sc().getSchedulingMode().toString() == "FAIR"
    pools = {pool.name() for pool in _java_list(context, context._jsc.sc().getAllPools())}
    assert pools >= {str(following.output(store.name)) for store in supervised.stores}


def test_a_store_that_is_gone_for_a_while_keeps_its_run(following: Following) -> None:
    """It is not listed, and comes back: there is one run of it all the time."""
    following.come("plain")
    looks, runs = list[bool](), set[int]()

    def step() -> bool:
        runs.update(
            thread.ident or 0 for thread in threading.enumerate() if thread.name == "reput-plain"
        )
        if following.is_complete("plain"):
            looks.append(bool(following.found))
            if len(looks) == 2:
                del following.found["plain"]
            elif len(looks) == 4:
                following.come("plain")
        return len(looks) == 8

    supervised = following.run(step)
    assert looks[:8] == [True, True, False, False, True, True, True, True]
    assert len(runs) == 1
    (store,) = supervised.stores
    assert (store.failures, store.error) == (0, None)


@pytest.mark.parametrize(
    "refused", [UsageError("two stores have one name"), PermissionError(13, "not to be listed")]
)
def test_a_look_that_fails_is_told_once_each_time(
    following: Following, caplog: pytest.LogCaptureFixture, refused: Exception
) -> None:
    """It is not told at every look, and is told again where a look between has succeeded."""
    looks: list[Exception | None] = [refused, refused, refused, None, refused, refused, None]

    def step() -> bool:
        following.refusal = looks.pop(0)
        return not looks

    following.run(step)
    assert sum(str(refused) in record.getMessage() for record in caplog.records) == 2


def test_a_run_that_ends_by_itself_has_failed(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody stops its query in Spark's pages: it is started again after a pause, and
    the reason is told."""
    ended = list[Path]()

    def run(config: DispatcherConfig, *_: object, **_named: object) -> None:
        ended.append(config.store)

    monkeypatch.setattr(supervisor, "run_dispatcher", run)
    following.come("plain")
    (store,) = following.run(lambda: following.failures("plain") > 0 or len(ended) > 1).stores
    assert (store.error, store.failures) == ("its query has ended by itself", 1)
    assert len(ended) == 1


def _java_list(context: Any, sequence: Any) -> list[Any]:
    return list(context._jvm.scala.jdk.javaapi.CollectionConverters.asJava(sequence))


def test_pauses_double_up_to_a_limit_and_begin_anew_after_progress(tmp_path: Path) -> None:
    """Counts of runs that failed are kept."""
    store = SupervisedStore(
        "x", DispatcherConfig(tmp_path, tmp_path), Measures(), began=time.monotonic()
    )
    assert [store.failed() for _ in range(4)] == [1, 2, 4, 8]
    assert max(store.failed() for _ in range(50)) == LAST_PAUSE_SECONDS
    progress = store.measures.progress = Progress()
    assert store.failed() == LAST_PAUSE_SECONDS, "it has started, and dispatched nothing"
    progress = store.measures.progress = Progress()
    progress.advance(10, DispatchCounts(messages=3))
    progress.note_durable()
    progress.advance(15, DispatchCounts(messages=2))
    assert store.failed() == 1
    progress = store.measures.progress = Progress()
    progress.advance(20, DispatchCounts(messages=4, gaps=1))
    progress.note_durable()
    found = store.summary()
    assert (found["messages"], found["gaps"], found["end_offset"]) == (7, 1, 20)
    store.began -= LAST_PAUSE_SECONDS + 1
    assert store.failed() == 1, "it ran for long"
    found = store.summary()
    assert (found["messages"], found["gaps"], found["end_offset"]) == (7, 1, None)
