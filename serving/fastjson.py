"""JSON values as fastjson reads them into the fields of RocketMQ's classes.

Clients in other languages rely on it: the C++ client sends numbers as texts and enumerated values
as their ordinals, and leaves out what is empty. Each function takes the value as parsed, has a
default for one that is absent, and raises ValueError where a broker refuses the request. Numbers
beyond a long are refused; fastjson cuts off the upper bits of some. Source: fastjson 1.2.83
``TypeUtils``, ``EnumDeserializer``, ``CollectionCodec``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

MIN_LONG, MAX_LONG = -(1 << 63), (1 << 63) - 1
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_ABSENT = (None, "", "null", "NULL")
_FLAGS = {"true": True, "1": True, "y": True, "false": False, "0": False, "f": False}
_CAPITALS = {"T": True, "N": False}


def member(fields: Mapping[str, object], name: str) -> object:
    """The value of a field, None if it is absent. Its name may be written in any case, and with
    underscores and hyphens."""
    if name in fields:
        return fields[name]
    plain = name.lower()
    for key, value in fields.items():
        if key.replace("_", "").replace("-", "").lower() == plain:
            return value
    return None


def as_text(value: object) -> str:
    """A String; empty where it is absent."""
    if value is None:
        return ""
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )


def as_number(value: object, default: int = 0) -> int:
    """A long; a fraction is cut off, and a text may have commas."""
    if value in _ABSENT:
        return default
    if isinstance(value, str):
        digits = value.replace(",", "")
        number = int(digits) if _WHOLE.fullmatch(digits) else None
    elif isinstance(value, int | float) and math.isfinite(value):
        number = int(value)
    else:
        number = None
    if number is None or not MIN_LONG <= number <= MAX_LONG:
        raise ValueError(f"{value!r:.40} is no long")
    return number


def as_flag(value: object) -> bool:
    """A boolean; False where it is absent."""
    if value in _ABSENT:
        return False
    if isinstance(value, int | float):
        return 1 <= value < 2
    flag = _FLAGS.get(value.lower(), _CAPITALS.get(value)) if isinstance(value, str) else None
    if flag is None:
        raise ValueError(f"{value!r:.40} is neither true nor false")
    return flag


def as_enum(value: object, names: tuple[str, ...]) -> str:
    """A value of the enumeration with these names, by its name in any case or by its ordinal;
    empty where it is absent, and for a text that names none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.upper() if value.upper() in names else ""
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    raise ValueError(f"{value!r:.40} is no ordinal of {names[0]} and so on")


def as_texts(value: object) -> list[str]:
    """A Set of Strings."""
    return [as_text(item) for item in _as_list(value)]


def as_numbers(value: object) -> list[int]:
    """A Set of longs."""
    return [as_number(item) for item in _as_list(value)]


def as_object(value: object) -> Mapping[str, object]:
    """An object; one without fields where it is absent."""
    fields = {} if value is None else value
    if not isinstance(fields, dict):
        raise ValueError(f"{value!r:.40} is no object")
    return fields


def as_objects(value: object) -> list[Mapping[str, object]]:
    """A Set of objects."""
    return [as_object(item) for item in _as_list(value)]


def _as_list(value: object) -> list[object]:
    items = [] if value is None else value
    if not isinstance(items, list):
        raise ValueError(f"{value!r:.40} is no list")
    return items
