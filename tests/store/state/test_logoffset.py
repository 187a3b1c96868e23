"""Spark's copy of our offset proves itself: whose it is, and that no digit changed."""

from __future__ import annotations

import json

import pytest

from reput.store.state.evidence import PassedRecord
from reput.store.state.logoffset import (
    MAX_OFFSET,
    LogOffset,
    offset_json,
    parse_log_offset,
    parse_offset,
)

STORE = "0123456789abcdef0123456789abcdef"
EVIDENCE = (PassedRecord(1_234_000, 567, 0xABCDEF01), PassedRecord(0, 91, 7))


@pytest.mark.parametrize("offset", [0, 1, 123_456_789, MAX_OFFSET])
def test_an_offset_is_read_back_by_its_own_store_only(offset: int) -> None:
    """As a dict and as JSON text; keys in one fixed order, since Spark compares the text."""
    value = offset_json(STORE, offset)
    assert list(value) == sorted(value)
    for form in (value, json.dumps(value), json.dumps(value, separators=(",", ":"))):
        assert parse_offset(form, STORE) == offset
        assert parse_offset(form) == offset
        assert parse_offset(form, STORE[::-1]) is None


def test_evidence_is_read_back_and_leaves_the_other_fields() -> None:
    """A version that knows none of it reads the same three fields."""
    value = offset_json(STORE, 1_234_567, EVIDENCE)
    assert list(value) == sorted(value)
    for form in (value, json.dumps(value)):
        assert parse_log_offset(form, STORE) == LogOffset(1_234_567, EVIDENCE)
        assert parse_offset(form, STORE) == 1_234_567
    del value["evidence"]
    assert value == offset_json(STORE, 1_234_567)


def test_evidence_that_was_changed_is_none() -> None:
    """Any character of it; evidence of another offset; none where there must be some."""
    text = offset_json(STORE, 1_234_567, EVIDENCE)["evidence"]
    plain = offset_json(STORE, 1_234_567)
    for at in range(len(text)):
        for other in "0f: x":
            if other != text[at]:
                changed = text[:at] + other + text[at + 1 :]
                assert parse_log_offset({**plain, "evidence": changed}, STORE) is None
        assert parse_log_offset({**plain, "evidence": text[:at]}, STORE) is None
    for other in (None, 5, offset_json(STORE, 1_234_568, EVIDENCE)["evidence"]):
        assert parse_log_offset({**plain, "evidence": other}, STORE) is None
    later = offset_json(STORE, 1_234_566, EVIDENCE)
    assert parse_log_offset(later, STORE) is None


def test_every_changed_or_missing_character_is_noticed() -> None:
    """Spark does not checksum its offset log: no other offset may come out of a damaged one."""
    text = json.dumps(offset_json(STORE, 1_234_567))
    for at in range(len(text)):
        for other in '0123456789abcdef-." {}':
            if other != text[at]:
                changed = text[:at] + other + text[at + 1 :]
                assert parse_offset(changed, STORE) in (None, 1_234_567), changed
        assert parse_offset(text[:at], STORE) is None
        assert parse_offset(text[:at] + text[at + 1 :], STORE) in (None, 1_234_567)


@pytest.mark.parametrize(
    "value",
    [None, 7, "7", "null", "[]", "{}", {}, {"offset": 1}, '{"offset": 1, "store": "x"}', [1]],
)
def test_what_is_no_offset_is_none(value: object) -> None:
    """Other sources' offsets included."""
    assert parse_offset(value) is None


def test_an_offset_with_a_field_that_nobody_knows_is_none() -> None:
    """It is of a later version, and what it says might be that the position is another one."""
    for value in (offset_json(STORE, 7), offset_json(STORE, 1_234_567, EVIDENCE)):
        assert parse_offset(value, STORE) is not None
        assert parse_offset({**value, "until": 3}, STORE) is None
        assert parse_offset(json.dumps({**value, "until": None}), STORE) is None


@pytest.mark.parametrize("offset", [True, 1.0, "1", -1, MAX_OFFSET + 1, None])
def test_an_offset_is_a_whole_number_of_bytes(offset: object) -> None:
    """Anything else is refused even with a right checksum."""
    value = {**offset_json(STORE, 1), "offset": offset}
    assert parse_offset(value, STORE) is None
