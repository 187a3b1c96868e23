"""Reads JSON that anybody may have written: a document, or ValueError, whatever the bytes are.

Python's parser recurses, and answers a few KiB of brackets with another kind of error. It knows
nothing of types either: a damaged digit may make a text of a number.
"""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def parse(text: str | bytes, **options: Any) -> Any:
    """The document; ``options`` are those of ``json.loads``. Raises ValueError."""
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def checksum(members: Mapping[str, Any]) -> int:
    """CRC-32 of an object, whatever the order of its members."""
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())


def build(kind: type[Kind], document: object) -> Kind:
    """Make a dataclass of a JSON object whose members are its fields, of the annotated types:
    texts, whole numbers, maps of those, or None. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("there is no object of fields")
    for name, hint in get_type_hints(kind).items():
        if name in document and not _fits(document[name], hint):
            raise ValueError(f"{name} is {document[name]!r:.80}")
    try:
        return kind(**document)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in get_args(hint))
    if origin is Mapping:
        _, kind = get_args(hint)
        return isinstance(value, dict) and all(_fits(item, kind) for item in value.values())
    return type(value) is hint
