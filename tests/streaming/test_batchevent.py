"""The log tells of a batch, and of an error in one line, whoever raised it."""

from __future__ import annotations

import logging
import traceback

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkValueError

from reput.store.errors import NotReadyError, ReputError, StoreError, UsageError
from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.batchevent import COMMIT, BatchEvent
from reput.streaming.measures import Measures
from reput.streaming.spark.errors import cause_line, error_line, error_of_ours, first_line


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything is logged."""
    caplog.set_level(logging.DEBUG, "reput")
    return caplog


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = record.__dict__["fields"]
    return found


def test_a_batch_is_told_as_what_was_committed_of_it(logged: pytest.LogCaptureFixture) -> None:
    """In pieces, of which others were dispatched before, or are not reached: from the first to the
    last, with all messages; nothing where all of it was dispatched before."""
    measures = Measures()
    event = BatchEvent(measures, 7, 0, 100)
    event.log_committed()
    assert logged.records == []
    for start, end, messages in ((40, 60, 3), (60, 90, 4)):
        with event.step(COMMIT):
            measures.stage("write").add(0.25)
        counts = DispatchCounts(messages=messages, duplicates=1, gaps=9, quarantined_bytes=5)
        event.note_committed(start, end, counts)
    event.log_committed()
    (record,) = logged.records
    assert (record.levelno, record.getMessage()) == (logging.DEBUG, "batch")
    found = fields_of(record)
    assert found.pop("commit_ms") == pytest.approx(0.0, abs=1000.0)
    assert found == {
        "batch_id": 7, "start": 40, "end": 90, "messages": 7, "duplicates": 2,
        "quarantined_bytes": 10, "write_ms": 500.0, "sync_ms": 0.0, "ledger_ms": 0.0,
        "watermark_ms": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StoreError("the log\nis  gone"), "the log is gone"),
        (OSError(5, "read\nfailed"), "[Errno 5] read"),
        (ValueError(), "ValueError"),
        (ValueError("a line\nits stack"), "a line"),
    ],
)
def test_a_failed_batch_is_one_line_that_begins_with_its_cause(
    logged: pytest.LogCaptureFixture, error: Exception, cause: str
) -> None:
    """It has the whole of our errors, the first line of others, and the range that is known."""
    BatchEvent(Measures(), None, 12, None).log_failed(error)
    (record,) = logged.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "batch failed")
    assert [*fields_of(record).items()] == [
        ("cause", cause), ("batch_id", None), ("start", 12), ("end", None)
    ]  # fmt: skip


PY4J_TEXT = "An error occurred while calling o5.x.\n: java.io.IOException: disk\n\tat a.B.c(B.java)"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Py4JError(PY4J_TEXT), "java.io.IOException: disk"),
        (Py4JError("Answer from Java side is empty"), "Answer from Java side is empty"),
        (PySparkValueError("[CODE] a text\n  its stack"), "[CODE] a text"),
        (ValueError("\n a line \n another"), "a line "),
        (KeyError(), "KeyError"),
    ],
)
def test_a_line_of_spark_is_its_message_without_where_it_came_from(
    error: Exception, line: str
) -> None:
    """Py4J begins with the call that failed, which helps nobody. None of these is ours; of those
    that are not Spark's either, the kind is told."""
    assert first_line(error) == cause_line(error) == line
    assert error_of_ours(error) is None
    is_sparks = not isinstance(error, ValueError | KeyError) or "[CODE]" in line
    assert error_line(error) == (line if is_sparks else repr(error))


@pytest.mark.parametrize("kind", [NotReadyError, StoreError, UsageError])
def test_an_error_of_a_worker_is_of_the_kind_that_it_was(kind: type[ReputError]) -> None:
    """A run waits for what is not ready yet, and ends by all others. The text is Python's own."""
    text = "".join(traceback.format_exception(kind("a file: torn")))
    found = error_of_ours(PySparkValueError(text))
    assert (type(found), str(found)) == (kind, "a file: torn")
