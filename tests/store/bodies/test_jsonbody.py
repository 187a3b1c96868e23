"""JSON bodies: what fits a type, and what does not."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from reput.store.bodies.decoder import BadBodyError
from reput.store.bodies.jsonbody import JsonBody

MICROSECONDS = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal(5,2)", "123.45", Decimal("123.45")),
        ("decimal(5,2)", '"123.45"', Decimal("123.45")),
        ("decimal(5,2)", "-999", Decimal("-999.00")),
        ("decimal(5,2)", "1e2", Decimal("100.00")),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("decimal(38,37)", "0." + "1" * 37, Decimal("0." + "1" * 37)),
        ("decimal(3,3)", "0.125", Decimal("0.125")),
        ("decimal(2,2)", "0", Decimal("0.00")),
        ("decimal(2,2)", '"0.00"', Decimal("0.00")),
        ("decimal(10,2)", "0e9", Decimal("0.00")),
        ("integer", str(-(1 << 31)), -(1 << 31)),
        ("integer", str((1 << 31) - 1), (1 << 31) - 1),
        ("long", str(-(1 << 63)), -(1 << 63)),
        ("long", str((1 << 63) - 1), (1 << 63) - 1),
        ("string", '"1"', "1"),
        ("boolean", "false", False),
        ("double", "0.1", 0.1),
        ("double", "7", 7.0),
        ("date", '"2026-01-02"', date(2026, 1, 2)),
        ("timestamp", '"2026-01-02T03:04:05.000006Z"', MICROSECONDS),
        ("timestamp", '"2026-01-02T03:04:05.000006"', MICROSECONDS),
        ("timestamp", '"2026-01-02T00:34:05.000006-02:30"', MICROSECONDS),
        (["long"], "[1, null, 2]", [1, None, 2]),
        (["long"], "[]", []),
        ({"*": "double"}, '{"x": 0.5, "y": null}', [("x", 0.5), ("y", None)]),
        ({"a": "long", "b": ["string"]}, '{"b": ["x"], "c": 1}', {"a": None, "b": ["x"]}),
        ([{"a": "decimal(3,1)"}], '[{"a": 1.5}, null]', [{"a": Decimal("1.5")}, None]),
    ],
)
def test_values_that_fit(kind: Any, text: str, value: object) -> None:
    """Arrow takes them as they are."""
    found = JsonBody({"v": kind, "none": kind})
    decoded = found.decode(f'{{"v": {text}}}'.encode())
    assert pa.array([decoded["v"]], found.fields["v"]).to_pylist() == [value]
    assert decoded["none"] is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("decimal(5,2)", "1000"), ("decimal(5,2)", "0.001"), ("decimal(5,2)", "true"),
        ("decimal(5,2)", '"1_0"'), ("decimal(5,2)", '" 1"'), ("decimal(5,2)", '"NaN"'),
        ("decimal(5,2)", '"1e1"'), ("decimal(5,2)", "1e9999999"), ("decimal(5,2)", "[]"),
        ("decimal(3,3)", "1.0"), ("double", "1e400"), ("double", '"1"'), ("date", '"2026-13-01"'),
        ("integer", str(1 << 31)), ("integer", str(-(1 << 31) - 1)), ("integer", "true"),
        ("long", str(1 << 63)), ("long", str(-(1 << 63) - 1)), ("long", "1.0"),
        ("boolean", "0"), ("string", "1"), ("string", '"\\ud800"'),
        ("date", "20260102"), (["long"], "{}"), (["long"], '["1"]'), ({"*": "long"}, "[]"),
        ({"*": "long"}, '{"a": 1.5}'), ({"*": "long"}, '{"\\ud800": 1}'), ({"a": "long"}, "7"),
        ({"a": "long"}, '{"a": "7"}'),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(kind: Any, text: str) -> None:
    """The reason names the column, and tells nothing of the body."""
    with pytest.raises(BadBodyError, match="v is not of type ") as raised:
        JsonBody({"v": kind}).decode(f'{{"v": {text}}}'.encode())
    assert "9999" not in str(raised.value)
