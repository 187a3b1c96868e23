"""Objects of fields that anybody may have written: of the right types, or ValueError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from reput.store.jsontext import build, checksum


@dataclass(frozen=True)
class Form:
    """One field of each kind."""

    name: str
    count: int
    end: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def test_an_object_is_built_of_the_fields_that_it_has() -> None:
    """Fields with a default may be missing; a field of two types has either of them."""
    assert build(Form, {"name": "a", "count": 0}) == Form("a", 0)
    assert build(Form, {"name": "", "count": -1, "end": None}) == Form("", -1)
    sizes, parts = {"x": 1, "y": 2}, {"p": {"q": "r"}, "s": {}}
    found = build(Form, {"name": "a", "count": 1, "end": 7, "sizes": sizes, "parts": parts})
    assert found == Form("a", 1, 7, sizes, parts)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"name": 1}, "name is 1"),
        ({"name": None}, "name is None"),
        ({"count": "1"}, "count is '1'"),
        ({"count": True}, "count is True"),
        ({"count": 1.0}, "count is 1.0"),
        ({"count": None}, "count is None"),
        ({"end": False}, "end is False"),
        ({"end": "7"}, "end is '7'"),
        ({"sizes": [1]}, "sizes is"),
        ({"sizes": {"x": "1"}}, "sizes is"),
        ({"sizes": {"x": 1, "y": None}}, "sizes is"),
        ({"parts": {"p": "q"}}, "parts is"),
        ({"parts": {"p": {"q": 1}}}, "parts is"),
        ({"more": 1}, "more"),
    ],
)
def test_a_field_of_another_type_is_named(change: dict[str, object], word: str) -> None:
    """A damaged digit may make a text of a number, and yes is no number."""
    with pytest.raises(ValueError, match=word):
        build(Form, {"name": "a", "count": 1, **change})


@pytest.mark.parametrize("document", [None, [], "name", 7, {}, {"name": "a"}, [["name", "a"]]])
def test_what_lacks_its_fields_is_refused(document: object) -> None:
    """So is a text, a list, and nothing."""
    with pytest.raises(ValueError):
        build(Form, document)


def test_a_checksum_is_of_the_members_and_not_of_their_order() -> None:
    """Objects within objects as well; each value and each name counts."""
    members = {"a": 1, "b": {"c": [1, 2], "d": None}}
    other_order = {"b": {"d": None, "c": [1, 2]}, "a": 1}
    assert checksum(members) == checksum(other_order)
    texts = [json.dumps(members).replace(*change) for change in (("1, 2", "2, 1"), ('"a"', '"e"'))]
    assert len({checksum(members), *(checksum(json.loads(text)) for text in texts)}) == 3
