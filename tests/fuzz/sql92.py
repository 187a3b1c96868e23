"""SQL92 expressions: any text is a selector or an ExpressionError, and a selector has an answer."""

from __future__ import annotations

from collections.abc import Iterator

from reput.filters.sql92 import EvaluationError, ExpressionError, parse

EXPRESSIONS = (
    "a > 1", "a = 'x' AND b <> 2.5", "a BETWEEN 1 AND 3 OR NOT (b IS NULL)", "a IN ('x', 'y''z')",
    "a NOT IN ('x')", "a CONTAINS 'x' or b STARTSWITH 'y'", "a = TRUE", "a is not null", "-a < 1e3",
    "a >= 9223372036854775807L", "((((a))))", "a = 0x10", "/* c */ a -- d",
)  # fmt: skip
PROPERTIES = ({}, {"a": "1"}, {"a": "x", "b": "2.5"}, {"a": "", "b": "yes"}, {"a": "1e400"})


def seeds() -> Iterator[bytes]:
    """Yield expressions of every kind."""
    for text in EXPRESSIONS:
        yield text.encode()


def check(data: bytes) -> None:
    """Compile the text and evaluate it."""
    text = data.decode("utf-8", "replace")
    try:
        selector = parse(text)
    except ExpressionError as error:
        assert "\n" not in str(error).replace(text, "")
        return
    for values in PROPERTIES:
        try:
            assert selector.evaluate(values) in (True, False, None)
        except EvaluationError:
            assert not selector.matches(values)
