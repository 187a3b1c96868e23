"""What all kernels share: where compiled code is cached, big-endian loads and stores, CRC-32."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from numba import config, njit


def _private_cache_directory() -> str:
    """Compiled kernels are code, so they are cached where only this user can write.

    Every Python worker imports this module: without a cache each would compile for seconds.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    for parent in (Path(home), Path(tempfile.gettempdir()) / f"reput-{os.getuid()}"):
        directory = parent / "reput" / "kernels"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError:
            continue
        if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
            return str(directory)
    raise OSError("no private directory for compiled kernels; set NUMBA_CACHE_DIR to one")


if not config.CACHE_DIR:  # type: ignore[attr-defined]
    config.CACHE_DIR = _private_cache_directory()  # type: ignore[attr-defined]


def _crc_tables() -> np.ndarray:
    """Slicing-by-8 tables of CRC-32: uint32[8, 256]."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 8):
        previous = tables[row - 1]
        tables[row] = previous >> np.uint32(8) ^ tables[0][previous & np.uint32(255)]
    return tables


CRC_TABLES = _crc_tables()


@njit(inline="always")
def u8(buf, pos):
    """Unsigned byte at ``pos``, as int64 like all of these."""
    return np.int64(buf[np.uint64(pos)])


@njit(inline="always")
def i16(buf, pos):
    """Signed big-endian 16-bit value."""
    return np.int64(np.int16(u8(buf, pos) << 8 | u8(buf, pos + 1)))


@njit(inline="always")
def u32(buf, pos):
    """Unsigned big-endian 32-bit value."""
    return u8(buf, pos) << 24 | u8(buf, pos + 1) << 16 | u8(buf, pos + 2) << 8 | u8(buf, pos + 3)


@njit(inline="always")
def i32(buf, pos):
    """Signed big-endian 32-bit value."""
    return np.int64(np.int32(u32(buf, pos)))


@njit(inline="always")
def i64(buf, pos):
    """Signed big-endian 64-bit value."""
    return u32(buf, pos) << 32 | u32(buf, pos + 4)


@njit(inline="always")
def put32(out, pos, value):
    """Write the low 32 bits of ``value`` big-endian."""
    out[np.uint64(pos)] = np.uint8(value >> 24)
    out[np.uint64(pos + 1)] = np.uint8(value >> 16)
    out[np.uint64(pos + 2)] = np.uint8(value >> 8)
    out[np.uint64(pos + 3)] = np.uint8(value)


@njit(inline="always")
def put64(out, pos, value):
    """Write ``value`` big-endian."""
    put32(out, pos, value >> 32)
    put32(out, pos + 4, value)


@njit(cache=True, nogil=True)
def crc32(tables, buf, start, end):
    """CRC-32 & 0x7FFFFFFF of ``buf[start:end]``."""
    crc = np.uint32(0xFFFFFFFF)
    pos = start
    while end - pos >= 8:
        low = crc ^ np.uint32(
            u8(buf, pos) | u8(buf, pos + 1) << 8 | u8(buf, pos + 2) << 16 | u8(buf, pos + 3) << 24
        )
        crc = (
            tables[7, low & 255]
            ^ tables[6, low >> np.uint32(8) & 255]
            ^ tables[5, low >> np.uint32(16) & 255]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, u8(buf, pos + 4)]
            ^ tables[2, u8(buf, pos + 5)]
            ^ tables[1, u8(buf, pos + 6)]
            ^ tables[0, u8(buf, pos + 7)]
        )
        pos += 8
    while pos < end:
        crc = tables[0, (np.int64(crc) ^ u8(buf, pos)) & 255] ^ crc >> np.uint32(8)
        pos += 1
    return np.int64(crc ^ np.uint32(0xFFFFFFFF)) & 0x7FFFFFFF
