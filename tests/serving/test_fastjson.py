"""Values as fastjson 1.2.83 reads them: its own answers, in a table.

``tests/interop/test_heartbeats.py`` asks a broker for more of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from reput.serving.fastjson import (
    as_enum,
    as_flag,
    as_number,
    as_numbers,
    as_objects,
    as_text,
    as_texts,
    member,
)

ERROR = object()


def as_model(value: object) -> str:
    """MessageModel."""
    return as_enum(value, ("BROADCASTING", "CLUSTERING"))


ANSWERS: dict[Callable[..., object], dict[str, object]] = {
    as_number: {
        '"17"': 17, '"+17"': 17, '"-17"': -17, '"0017"': 17, '"1,700"': 1700, '",2"': 2,
        '"-1,2,"': -12, "1.7": 1, "-0.9": 0, "1e3": 1000, "true": 1, "false": 0, "null": 0,
        '""': 0, '"null"': 0, '"NULL"': 0, '"9223372036854775807"': (1 << 63) - 1,
        '"Null"': ERROR, '" 17 "': ERROR, '"1.5"': ERROR, '"1.0"': ERROR, '"1e3"': ERROR,
        '"x"': ERROR, '","': ERROR, '"-"': ERROR, '"+-1"': ERROR, "[1]": ERROR, "{}": ERROR,
        '"9223372036854775808"': ERROR, "9223372036854775808": ERROR,
    },
    as_flag: {
        "true": True, '"true"': True, '"TRUE"': True, '"1"': True, '"Y"': True, '"y"': True,
        '"T"': True, "1": True, "1.0": True, "1.7": True, "false": False, '"FALSE"': False,
        '"0"': False, '"N"': False, '"F"': False, '"f"': False, "2": False, "-1": False,
        "0.5": False, "null": False, '""': False, '"null"': False, '"NULL"': False,
        '"t"': ERROR, '"n"': ERROR, '"yes"': ERROR, '"x"': ERROR, '"Null"': ERROR, "[]": ERROR,
        "{}": ERROR,
    },
    as_model: {
        "0": "BROADCASTING", "1": "CLUSTERING", '"CLUSTERING"': "CLUSTERING",
        '"Clustering"': "CLUSTERING", '"1"': "", '"BAD"': "", '""': "", "null": "",
        "2": ERROR, "-1": ERROR, "1.0": ERROR, "true": ERROR, "[]": ERROR,
        '{"modeCN":"BROADCASTING"}': ERROR,
    },
    as_text: {
        '"a"': "a", "7": "7", "true": "true", '{"a":[1,"ä"]}': '{"a":[1,"ä"]}', "null": "",
        '"null"': "null",
    },
    as_texts: {'["a",1,true,[1]]': ["a", "1", "true", "[1]"], '"a"': ERROR, "{}": ERROR},
    as_numbers: {'["1",2.5]': [1, 2], '["x"]': ERROR, "1": ERROR, '"1"': ERROR},
    as_objects: {
        '[{"a":1}]': [{"a": 1}], "[{}]": [{}], "[]": [], "null": [], "[7]": ERROR,
        '"x"': ERROR, "true": ERROR,
    },
}  # fmt: skip


@pytest.mark.parametrize("read", ANSWERS)
def test_values(read: Callable[[object], object]) -> None:
    """Each is read as fastjson reads it, and is an error where fastjson has one."""
    for text, expected in ANSWERS[read].items():
        if expected is ERROR:
            with pytest.raises(ValueError, match=" is n"):
                read(json.loads(text))
        else:
            found = read(json.loads(text))
            assert (found, type(found)) == (expected, type(expected)), text


def test_names_of_fields() -> None:
    """In any case, with underscores and hyphens; the field's own name comes first."""
    fields = {"sub_string": 1, "SUB-VERSION": 2, "Topic": 3, "topic": 4, "x": 5}
    names = ("subString", "subVersion", "topic", "tagsSet")
    assert [member(fields, name) for name in names] == [1, 2, 4, None]
