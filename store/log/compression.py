"""Inflates bodies that a client compressed, up to a limit.

A few KB may inflate to gigabytes, and any client can send bodies. Source: RocketMQ 5.3.3
``MessageSysFlag``, ``CompressionType``, ``CompressorFactory``; formats.md §2.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from reput.store.log.sysflag import SysFlag

if TYPE_CHECKING:
    import pyarrow as pa

UNKNOWN = "unknown"
MAX_INFLATED_BYTES = 16 << 20
"""Limit for a body that goes to a table or to Kafka; a larger one is not inflated."""
# the compressed bit without type bits is zlib, as written before 4.9.4
_COMPRESSIONS = {
    0: "zlib",
    SysFlag.COMPRESSION_LZ4: "lz4",
    SysFlag.COMPRESSION_ZSTD: "zstd",
    SysFlag.COMPRESSION_ZLIB: "zlib",
}


def compression(sys_flag: int) -> str | None:
    """Codec of a body, or ``unknown``; None for a plain one."""
    if not sys_flag & SysFlag.COMPRESSED:
        return None
    return _COMPRESSIONS.get(sys_flag & SysFlag.COMPRESSION_MASK, UNKNOWN)


def inflate(body: bytes | pa.Buffer, codec: str, limit: int) -> bytes | None:
    """The plain body; None if it cannot be inflated within ``limit`` bytes."""
    inflaters: dict[str, Callable[[bytes | pa.Buffer, int], bytes]] = {
        "zlib": _inflate_zlib,
        "lz4": lambda data, most: _inflate_arrow(data, "lz4", most),
        "zstd": lambda data, most: _inflate_arrow(data, "zstd", most),
    }
    if codec not in inflaters:
        return None
    try:
        plain = inflaters[codec](body, limit + 1)
    except (zlib.error, OSError):
        return None
    return plain if len(plain) <= limit else None


def _inflate_zlib(body: bytes | pa.Buffer, most: int) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, most)
    if not inflater.eof and len(plain) < most:
        raise zlib.error("the stream is cut")
    return plain


def _inflate_arrow(body: bytes | pa.Buffer, codec: str, most: int) -> bytes:
    import pyarrow as pa  # noqa: PLC0415  slow to load, and most bodies are plain

    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            return bytes(stream.read(most))
    except pa.ArrowException as error:
        raise OSError(f"{codec}: {error}") from error
