"""Reads errors that come back through Spark: our own among them, and Spark's message for people.

A Python worker sends Spark the text of a traceback and nothing else of its exception
(``pyspark.util.handle_worker_exception``), so the exception's type exists in that text alone. The
text is found by structure: it is a parameter of an error with a condition of its own, somewhere
among the causes. In it, our error is the last line that begins with the full name of one of our
classes; a traceback indents frames and source lines. In plain mode (``sources.plainspark``) causes
cannot be told apart, and the text is all that Spark says of the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from reput.sources.plainspark import is_plain
from reput.store import errors
from reput.store.errors import NotReadyError, ReputError, StoreError, UsageError, error_text

_TRACEBACK_PARAMETERS = {
    "PYTHON_DATA_SOURCE_ERROR": "msg",
    "PYTHON_EXCEPTION": "traceback",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR": "msg",
}
"""Condition of a Python worker's error -> its parameter with the traceback."""
_BASES = (UsageError, NotReadyError, StoreError)
_OURS = {
    f"{errors.__name__}.{name}": next(
        (base for base in _BASES if issubclass(kind, base)), StoreError
    )
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, ReputError)
}
"""Full name of each class of the error tree -> the class to raise here: a message is all there is,
and some constructors take more."""


def error_of_ours(error: BaseException) -> ReputError | None:
    """Return the error of ours that a Python worker raised, as its base class; None where ``error``
    has another cause."""
    for text in _tracebacks(error):
        # not just the last line: Spark's clean-up after a reader that cannot be made also fails
        for line in reversed(text.splitlines()):
            name, _, message = line.partition(": ")
            if name in _OURS:
                return _OURS[name](message)
    return None


def _tracebacks(error: BaseException) -> Iterator[str]:
    """Yield the texts in which the traceback of a Python worker may stand."""
    thrown = _thrown(error)
    if thrown is None:
        yield str(error)
    while thrown is not None:
        if is_instance_of(SparkContext._gateway, thrown, "org.apache.spark.SparkThrowable"):
            parameter = _TRACEBACK_PARAMETERS.get(thrown.getCondition())
            if parameter is not None:
                yield thrown.getMessageParameters()[parameter]
        thrown = thrown.getCause()


def _thrown(error: BaseException) -> Any:
    """Return Java's exception; None where there is none, or in plain mode."""
    if is_plain():
        return None
    # pyspark converts the outermost error alone, and not all of them: a cause loses its condition
    return getattr(error, "_origin", None) or getattr(error, "java_exception", None)


def cause_line(error: BaseException) -> str:
    """Return the message of the first cause of a failed job, without its stack."""
    thrown = _thrown(error)
    while thrown is not None and thrown.getCause() is not None:
        thrown = thrown.getCause()
    message = thrown.getMessage() if thrown is not None else None
    return message.strip().splitlines()[0] if message else first_line(error)


def error_line(error: Exception) -> str:
    """Return one line about any error: Spark's own message, or ``error_text``."""
    is_sparks = isinstance(error, Py4JError | PySparkException)
    return first_line(error) if is_sparks else error_text(error)


def first_line(error: BaseException) -> str:
    """Return Spark's own message, without its stack and without Py4J's first line."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[1].lstrip(": ") if isinstance(error, Py4JError) and lines[1:] else lines[0]
