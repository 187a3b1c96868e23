"""The permissions of files, as they hold for everybody but root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2
_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )  # fmt: skip


def _called(function: str, sets: ctypes.Array[_Sets]) -> None:
    header = _Header(_VERSION_3, 0)
    if getattr(_libc, function)(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), function)


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Root has to obey permissions in the ``with`` block, in this thread and those that it starts.

    Another user would not do: Python's own files may be readable to root alone.
    """
    sets = (_Sets * 2)()
    _called("capget", sets)
    before = sets[0].effective
    sets[0].effective = before & ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    _called("capset", sets)
    try:
        yield
    finally:
        sets[0].effective = before
        _called("capset", sets)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Nobody may read, write or enter a path in the ``with`` block."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with permissions_hold():
            yield
    finally:
        os.chmod(path, mode)  # noqa: PTH101
