"""How a server learns of a commit in its process, or in another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from reput.serving.arrivals import NotifiedArrivals, PolledArrivals
from reput.serving.queues import QueueName
from reput.store.files import STATE_DIRECTORY, WATERMARK_FILE
from tests.support.processes import open_paths

TURNS = 5
"""Turns of the loop in which all that can be done without waiting is done."""


@pytest.mark.parametrize("named", [None, [("Topic", 1)], [("Topic", 0), ("Topic", 1)]])
def test_what_comes_while_the_server_looks_is_not_waited_for(named: list[QueueName] | None) -> None:
    """A commit before the next wait ends it at once, and once; each brings the queues of all since
    the last."""

    async def turns() -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def look() -> None:
        arrivals = NotifiedArrivals(asyncio.get_running_loop())
        for _ in range(2):
            arrivals.notify([("Topic", 0)])
            arrivals.notify(named)
            await turns()
            wait = asyncio.create_task(arrivals.wait())
            await turns()
            assert wait.done()
            found = wait.result()
            assert (found if found is None else {*found}) == (named and {("Topic", 0), *named})
            wait = asyncio.create_task(arrivals.wait())
            await turns()
            assert not wait.done()
            arrivals.notify([("Other", 7)])
            await turns()
            assert {*wait.result()} == {("Other", 7)}

    asyncio.run(look())


def test_a_server_that_ends_watches_nothing(tmp_path: Path) -> None:
    """One process may serve, end and serve again."""
    (tmp_path / STATE_DIRECTORY).mkdir()
    (tmp_path / STATE_DIRECTORY / WATERMARK_FILE).touch()

    def watches() -> int:
        return open_paths(Path()).count(Path("anon_inode:inotify"))

    async def watch() -> None:
        arrivals, before = PolledArrivals(tmp_path), watches()
        await arrivals.wait()
        assert watches() == before + 1
        arrivals.close()
        assert watches() == before

    asyncio.run(watch())
