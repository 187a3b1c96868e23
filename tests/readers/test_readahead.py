"""Work ahead of who wants it: held against ``map``, on any number of cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from reput.readers.readahead import MAX_THREADS, map_ahead

COUNT = 20


class BrokenError(Exception):
    """The error that a test raises."""


@pytest.fixture(params=[1, 2, 3, 64])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many that this process may use."""
    count: int = request.param
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))
    return count


def failing_at(place: int) -> Iterator[int]:
    """Numbers up to ``place``, then an error."""
    yield from range(place)
    raise BrokenError


@pytest.mark.usefixtures("cores")
def test_what_is_done_comes_in_order() -> None:
    """Any number of items, none included."""
    for count in range(COUNT):
        assert list(map_ahead(lambda item: item * 2, range(count))) == list(range(0, 2 * count, 2))


def test_threads_work_side_by_side_and_the_order_stays(cores: int) -> None:
    """The first of each two neighbours ends last: it waits for the other one."""
    done = [threading.Event() for _ in range(COUNT + 1)]
    alone = cores == 1

    def work(item: int) -> int:
        if item % 2 and not alone:
            assert done[item + 1].wait(60)
        done[item].set()
        return item

    assert list(map_ahead(work, range(COUNT + 1))) == list(range(COUNT + 1))


def test_no_more_is_taken_than_there_are_threads(cores: int) -> None:
    """Nothing is taken before the first is asked for; the first starts no thread."""
    taken: list[int] = []
    items = (taken.append(item) or item for item in range(COUNT))
    before = threading.active_count()
    results = map_ahead(lambda item: item, items)
    assert taken == []
    assert next(results) == 0
    assert taken == [0]
    assert threading.active_count() == before
    threads = 0 if cores == 1 else min(cores, MAX_THREADS)
    for item in range(1, COUNT):
        assert next(results) == item
        assert taken == list(range(min(item + threads + 1, COUNT)))
        assert threading.active_count() - before <= threads


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("place", [0, 1, 2, 7, COUNT - 1])
def test_errors_come_in_their_place(place: int) -> None:
    """Errors of the work and of the items' source: all items before it come, none after it."""

    def work(item: int) -> int:
        if item == place:
            raise BrokenError
        return item

    before = threading.active_count()
    for results in (map_ahead(work, range(COUNT)), map_ahead(lambda item: item, failing_at(place))):
        for item in range(place):
            assert next(results) == item
        with pytest.raises(BrokenError):
            next(results)
        assert list(results) == []
        assert threading.active_count() == before


@pytest.mark.parametrize("given", [1, 2, 5])
def test_closing_ends_the_threads(cores: int, given: int) -> None:
    """Work that waited for a thread is not begun any more."""
    begun: list[int] = []
    before = threading.active_count()
    results = map_ahead(lambda item: begun.append(item) or item, range(COUNT))
    for item in range(given):
        assert next(results) == item
    results.close()
    assert threading.active_count() == before
    assert sorted(begun) == list(range(len(begun)))
    assert len(begun) <= given + min(cores, MAX_THREADS)
