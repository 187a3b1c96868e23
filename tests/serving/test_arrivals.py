"""How a server learns of a commit in its process, or in another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from reput.serving import arrivals
from reput.serving.arrivals import NotifiedArrivals, PolledArrivals
from reput.serving.queues import QueueName
from reput.store.files import STATE_DIRECTORY, WATERMARK_FILE
from tests.support.processes import open_paths

LONGEST_SECONDS = 60.0
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
        notified = NotifiedArrivals(asyncio.get_running_loop())
        for _ in range(2):
            notified.notify([("Topic", 0)])
            notified.notify(named)
            await turns()
            wait = asyncio.create_task(notified.wait())
            await turns()
            assert wait.done()
            found = wait.result()
            assert (found if found is None else {*found}) == (named and {("Topic", 0), *named})
            wait = asyncio.create_task(notified.wait())
            await turns()
            assert not wait.done()
            notified.notify([("Other", 7)])
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
        polled, before = PolledArrivals(tmp_path), watches()
        await polled.wait()
        assert watches() == before + 1
        polled.close()
        assert watches() == before

    asyncio.run(watch())


@pytest.mark.parametrize("written", ["watermark", "visible"])
def test_each_write_of_a_position_by_another_process_ends_a_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str
) -> None:
    """The kernel reports it; a file that appears meanwhile is watched from the next call on."""
    monkeypatch.setattr(arrivals, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(arrivals, "WATCHED_POLL_SECONDS", LONGEST_SECONDS)
    state = tmp_path / "reput"
    state.mkdir()
    (state / ("visible" if written == "watermark" else "watermark")).touch()

    async def look() -> None:
        polled = PolledArrivals(tmp_path)
        await polled.wait()
        (state / written).touch()
        # it may have been written before it was watched
        async with asyncio.timeout(LONGEST_SECONDS / 2):
            await polled.wait()
        for number in range(3):
            wait = asyncio.create_task(polled.wait())
            await asyncio.sleep(0)
            assert not wait.done()
            (state / written).write_bytes(bytes([number]))
            async with asyncio.timeout(LONGEST_SECONDS / 2):
                await wait
        polled.close()

    asyncio.run(look())
