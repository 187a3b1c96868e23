"""A broker's configuration: any text is a document, and a property file a map, or a ValueError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from reput.store import configjson
from reput.store.brokerconf import parse_properties
from reput.store.state.built import BuildRecord

TEXTS = (
    '{"offsetTable":{"T@g":{0:17,1:5}}}', '{"a":[1,2.5,"x"],"b":{"c":null}}', '{-1:{"x\\"":2}}',
    "a=1\nb : 2\n# c\nd=x\\\n  y\\u0041\\t ",
    "{a:'b\\'c',$d:['e',],}",
    '{"version":1,"settings":{},"broker.conf":{},"crc32":0}', "[[[[",
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield texts of both formats."""
    for text in TEXTS:
        yield text.encode()


def check(data: bytes) -> None:
    """Read the text as each of them."""
    text = data.decode("utf-8", "replace")
    for parse in (configjson.parse, BuildRecord.from_json):
        try:
            parse(text)  # type: ignore[operator]
        except ValueError:
            continue
    with contextlib.suppress(ValueError):
        for name, value in parse_properties(data).items():
            assert isinstance(name, str)
            assert isinstance(value, str)
