"""The measures of a run, as Prometheus counts them."""

from __future__ import annotations

import time

import pytest

from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.batchevent import COMMIT, BatchEvent
from reput.streaming.measures import Durations, Measures
from reput.streaming.progress import Progress


def test_a_duration_below_zero_is_none() -> None:
    """The clocks of a broker and a dispatcher may differ: neither count nor sum ever falls."""
    durations = Durations((1.0, 5.0))
    for seconds, total, counts in (
        (0.5, 0.5, (1, 1, 1)), (-7.0, 0.5, (2, 2, 2)), (1.0, 1.5, (3, 3, 3)),
        (4.0, 5.5, (3, 4, 4)), (6.0, 11.5, (3, 4, 5)),
    ):  # fmt: skip
        durations.add(seconds)
        assert (durations.sum, durations.cumulative) == (total, counts)


def test_another_attempt_counts_again_what_was_not_durable() -> None:
    """It writes it again, and begins where everything is durable."""
    progress = Progress(start_offset=100)
    progress.advance(200, DispatchCounts(messages=5))
    progress.note_durable()
    progress.advance(300, DispatchCounts(messages=7))
    assert (progress.position, progress.durable_position, progress.end_offset) == (300, 200, 200)
    progress.begin_again()
    assert (progress.position, progress.counts.messages) == (200, 5)
    progress.advance(400, DispatchCounts(messages=9))
    progress.note_durable()
    assert (progress.durable_position, progress.end_offset) == (400, 400)
    assert progress.counts.messages == 14


def test_the_times_of_a_batch_are_those_of_all_its_pieces() -> None:
    """A piece that fails counts too, and what other batches took does not."""
    measures = Measures()
    measures.stage("write").add(100.0)
    event = BatchEvent(measures, 7, 0, 10)

    def write(seconds: float, *, fails: bool = False) -> None:
        with event.step(COMMIT):
            measures.stage("write").add(seconds)
            if fails:
                raise OSError

    write(1.0)
    write(2.0)
    with pytest.raises(OSError):
        write(4.0, fails=True)
    assert event.stages["write"] == 7.0
    assert event.stages["sync"] == 0.0
    commits = measures.stage("commit")
    assert commits.cumulative[-1] == 3
    assert event.stages["commit"] == pytest.approx(commits.sum)


def test_sparks_durations_are_seconds_like_all_others() -> None:
    """Spark tells milliseconds, by Java's names."""
    measures = Measures()
    measures.note_spark({"addBatch": 1500, "triggerExecution": 2})
    found = {name: stage.sum for name, stage in measures.stages.items()}
    assert found == {"spark_add_batch": 1.5, "spark_trigger_execution": 0.002}


def test_a_batch_without_messages_has_no_age() -> None:
    """One that has some counts once, for readers of this machine or for all."""
    measures = Measures()
    ages = measures.append_to_visible, measures.append_to_durable
    noted = measures.note_visible, measures.note_durable
    for note, age, other in zip(noted, ages, reversed(ages), strict=True):
        before = other.cumulative[-1]
        note(0)
        assert age.cumulative[-1] == 0
        note(int(time.time() * 1000))
        assert (age.cumulative[-1], other.cumulative[-1]) == (1, before)
