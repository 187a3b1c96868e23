"""Does something in the middle of a command, at an operation of its own: no clock decides when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from reput.store import fsops


class _Told(fsops._Failpoints):
    def __init__(self, tell: Callable[[str, str], object]) -> None:
        super().__init__("")
        self._tell = tell

    def reach(self, operation: str, path: str) -> bool:
        self._tell(operation, path)
        return False


@contextmanager
def before_operations(tell: Callable[[str, str], object]) -> Iterator[None]:
    """Call ``tell`` with each operation of this process on files, by its failpoint's name, and with
    its path, right before it; an OSError of ``tell`` is the operation's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsops, "_failpoints", _Told(tell))
        yield


@contextmanager
def once_before(
    is_reached: Callable[[str, str], object], act: Callable[[], object]
) -> Iterator[None]:
    """Call ``act`` right before the first operation for which ``is_reached`` holds. Raises
    AssertionError where there was none."""
    reached: list[str] = []

    def tell(operation: str, path: str) -> None:
        if not reached and is_reached(operation, path):
            reached.append(path)
            act()

    with before_operations(tell):
        yield
    assert reached


class Killed(BaseException):
    """A kill of this process: whoever handles it does nothing more to files."""


@contextmanager
def killed_before(number: int) -> Iterator[None]:
    """End the block right before its operation of that number, counted from 1, as a kill does: what
    it would do to files at its end is not done. The block may end before."""
    numbers = count(1)

    def end(_operation: str, _path: str) -> None:
        if next(numbers) >= number:
            raise Killed

    with suppress(Killed), before_operations(end):
        yield
