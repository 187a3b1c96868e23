"""Shared parts of all kernels: the cache of compiled code, big-endian loads and stores, CRC-32.

numba has neither unaligned loads nor byte swaps of its own, and a field read byte by byte takes
several times as long. Nothing here checks a bound: the calling kernel must have done so.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from reput.store.privatecache import version_directory

_IMPORT = re.compile(r"\nfrom (reput\.[\w.]+) import (\([^)]*\)|.*)")


def kernel_sources(root: Path) -> list[Path]:
    """The files below the package's ``root`` that determine compiled code: every module with
    "kernel" in its name, which all with kernels have, and all that these take constants from."""
    sources, rest = set[str](), [str(path) for path in root.glob("*/**/*kernel*.py")]
    while rest:
        if (path := rest.pop()) not in sources:
            sources.add(path)
            for module, names in _IMPORT.findall(Path(path).read_text("utf-8")):
                place = f"{root.parent}/{module.replace('.', '/')}"
                inner = (f"{place}/{name}.py" for name in re.findall(r"\w+", names))
                rest += filter(os.path.isfile, inner) if Path(place).is_dir() else [f"{place}.py"]
    return [Path(path) for path in sorted(sources)]


if not config.CACHE_DIR:  # type: ignore[attr-defined]
    # Every Python worker imports this module; without a cache each would compile for seconds.
    # numba checks only a kernel's own file, not those of the functions it calls and its constants.
    sources = kernel_sources(Path(__file__).parent.parent.parent)
    config.CACHE_DIR = str(  # type: ignore[attr-defined]
        version_directory("kernels", sources, (sys.version, numba.__version__))
    )


# without reference counts (kernels allocate nothing) a scan takes a sixth less time
kernel = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]


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


def _word_at(context, builder, signature, args, word):
    """Pointer to the unaligned ``word`` (a numba type) at a position of a byte array."""
    array = make_array(signature.args[0])(context, builder, args[0])
    at = builder.gep(array.data, [args[1]])
    return builder.bitcast(at, context.get_value_type(word).as_pointer())


def _loader(word, result, big_endian):
    @intrinsic
    def load(_typing_context, buf, pos):
        def codegen(context, builder, signature, args):
            value = builder.load(_word_at(context, builder, signature, args, word), align=1)
            value = builder.bswap(value) if big_endian else value
            return context.cast(builder, value, word, result)

        return result(buf, pos), codegen

    return load


def _storer(word):
    @intrinsic
    def store(_typing_context, buf, pos, _value):
        def codegen(context, builder, signature, args):
            value = context.cast(builder, args[2], types.int64, word)
            at = _word_at(context, builder, signature, args, word)
            builder.store(builder.bswap(value), at, align=1)
            return context.get_dummy_value()

        return types.void(buf, pos, types.int64), codegen

    return store


# each is one unaligned load or store and a byte swap; positions are not checked
i32 = _loader(types.int32, types.int64, True)
i64 = _loader(types.int64, types.int64, True)
le64 = _loader(types.uint64, types.uint64, False)
put32 = _storer(types.int32)
put64 = _storer(types.int64)


@intrinsic
def prefetch(_typing_context, buf, pos):
    """Prefetch the bytes at a position, which will be read and written soon."""

    def codegen(context, builder, signature, args):
        at = _word_at(context, builder, signature, args, types.uint8)
        word = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [at.type], ir.FunctionType(ir.VoidType(), [at.type, word, word, word])
        )
        write, every_level, data = word(1), word(3), word(1)
        builder.call(function, [at, write, every_level, data])
        return context.get_dummy_value()

    return types.void(buf, pos), codegen


BLOCK = 64
"""Bytes that ``equal_bytes`` looks at together."""


@intrinsic
def equal_bytes(_typing_context, buf, pos, _byte):
    """Bit mask of the BLOCK bytes at a position: which of them equal the byte."""

    def codegen(context, builder, signature, args):
        block = ir.VectorType(ir.IntType(8), BLOCK)
        at = _word_at(context, builder, signature, args, types.uint8)
        data = builder.load(builder.bitcast(at, block.as_pointer()), align=1)
        none = ir.Constant(block, ir.Undefined)
        first = builder.insert_element(
            none, builder.trunc(args[2], ir.IntType(8)), ir.Constant(ir.IntType(32), 0)
        )
        every = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
        pattern = builder.shuffle_vector(first, none, every)
        return builder.bitcast(builder.icmp_unsigned("==", data, pattern), ir.IntType(BLOCK))

    return types.uint64(buf, pos, types.int64), codegen


@intrinsic
def lowest_bit(_typing_context, _word):
    """Index of the lowest bit that is set; there must be one."""

    def codegen(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


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
    return i32(buf, pos) & 0xFFFFFFFF


_memchr = types.ExternalFunction("memchr", types.uintp(types.uintp, types.int32, types.uintp))


@njit(inline="always")
def find_byte(buf, pos, end, byte):
    """First position of ``byte`` in ``buf[pos:end]``; ``end`` without one.

    It uses the C library's search, because a loop here takes three times as long on the usual block
    of properties.
    """
    start = buf.ctypes.data
    address = _memchr(start + np.uint64(pos), np.int32(byte), np.uint64(end - pos))
    return end if address == 0 else np.int64(address - start)


_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))


@njit(inline="always")
def copy_bytes(out, at, source, pos, count):
    """Copy ``count`` bytes of ``source`` at ``pos`` to ``out`` at ``at``."""
    _memcpy(out.ctypes.data + np.uint64(at), source.ctypes.data + np.uint64(pos), np.uint64(count))


_pread = types.ExternalFunction(
    "pread", types.intp(types.int32, types.uintp, types.uintp, types.int64)
)


@njit(inline="always")
def read_bytes(fd, offset, out, at, count):
    """``os.pread`` of ``count`` bytes to ``out`` at ``at``; returns bytes read, -1 for an error."""
    return np.int64(_pread(np.int32(fd), out.ctypes.data + np.uint64(at), np.uint64(count), offset))


_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))
_POPULATE_READ = 22
"""MADV_POPULATE_READ, of Linux 5.14 and later."""


@njit(inline="always")
def populate(address, start, count):
    """Read in the pages of a mapping at ``address`` that hold ``count`` bytes from byte ``start``
    on; whether they can be read."""
    low = address + start // mmap.PAGESIZE * mmap.PAGESIZE
    length = address + start + count - low
    return _madvise(np.uint64(low), np.uint64(length), np.int32(_POPULATE_READ)) == 0


@njit(inline="always")
def copy_mapped(out, at, address, count):
    """Copy ``count`` bytes at an address, which must have been populated, to ``out`` at ``at``."""
    _memcpy(out.ctypes.data + np.uint64(at), np.uint64(address), np.uint64(count))


@kernel
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
