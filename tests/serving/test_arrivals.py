"""How a server learns of a commit in its process."""

from __future__ import annotations

import asyncio

import pytest

from reput.serving.arrivals import NotifiedArrivals
from reput.serving.queues import QueueName

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
