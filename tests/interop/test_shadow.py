"""``reput shadow`` beside a real broker: no difference while both grow, and a changed byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.rocketmq import ONE_RELEASE, Broker, send
from tests.support.cli import Call


@pytest.mark.extended
@ONE_RELEASE
@pytest.mark.usefixtures("spark", "release")
def test_a_live_broker_and_a_changed_byte(tmp_path: Path, call: Call) -> None:
    """The broker runs and is sent to between two runs; then one byte of its queue is changed."""
    store = tmp_path / "store"
    store.mkdir()
    command = ("shadow", store, "--output", tmp_path / "output", "--once", "--json")
    with Broker(store, {"Trade": 2}) as broker:
        entries = 0
        for number in range(2):
            send(broker.namesrv, "Trade", 150, number)
            done = call(*command)
            assert done.returncode == 0, done.stdout
            assert done.stdout.strip(), done.stderr
            print(done.stdout, done.stderr)
            counts = json.loads(done.stdout.splitlines()[-1])["compared"]["consumequeue"]
            assert counts["entries"] > entries
            entries = counts["entries"]
        path = next((store / "consumequeue/Trade/0").iterdir())
        with path.open("r+b") as file:
            file.seek(47)
            before = file.read(1)[0]
            file.seek(47)
            file.write(bytes([before ^ 1]))
        done = call(*command)
    assert done.returncode == 1
    (found,) = json.loads(done.stdout.splitlines()[-1])["differences"]
    assert (found["topic"], found["queue_id"], found["unit"]) == ("Trade", 0, 2)
    assert (found["file"], found["position"]) == (path.name, 47)
    assert found["reput"]["offset"] == found["broker"]["offset"] ^ 1
