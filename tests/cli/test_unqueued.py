"""Commands that read queues say what of the log is in none, and how it gets into one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.readers.consumer import Consumer
from tests.support.broker_store import BrokerStore, four_queues
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput

OFFSETS = {"offsetTable": {"Orders@G": {"0": 60, "1": 55}}}


@pytest.fixture
def made(tmp_path: Path) -> BrokerStore:
    """A broker's store in which a group has consumed all that is left of a queue."""
    made = four_queues(tmp_path)
    made.write()
    (tmp_path / "config").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "stray").touch()
    (tmp_path / "config" / "consumerOffset.json").write_text(json.dumps(OFFSETS))
    return made


def commands(root: Path) -> dict[str, tuple[object, ...]]:
    """Each command, with the exit code that a message beyond the queue's end gives."""
    return {
        "groups list": ("groups", "list", root),
        "groups show": ("groups", "show", root, "G"),
        "lag": ("lag", root),
        "reset": ("groups", "reset", root, "G", "--topic", "Orders", "--earliest"),
        "tail": ("tail", root, "Orders", "-n", 1),
        "search-time": ("search-time", root, "Orders", 1, "1h"),
        "get": ("get", root, "Orders", 1, 58),
        "query": ("query", root, "Orders", "--key", "k"),
    }


def test_every_command_names_the_bytes_and_the_command(made: BrokerStore, call: Call) -> None:
    """While the queues are whole nothing is said; ``get`` and ``query`` say it where they find
    nothing."""
    names = commands(made.root)
    for name, command in names.items():
        done = call(*command)
        # no message has the key that is asked for
        assert (done.returncode, "in no queue" in done.stderr) == (name == "query", False), name
    lost = made.zero_last("Orders", 1, 5)
    text = f"{lost:,} bytes of the log are in no queue"
    for name, command in names.items():
        done = call(*command)
        assert done.stderr.count(text) == 1, name
        assert f"reput run {made.root} --adopt --once" in done.stderr, name
        assert done.returncode == (name in ("get", "query")), name
    shown = json_object(call(*names["groups show"], "--json"))
    # what is shown is what the queues hold
    assert [one["lag"]["messages"] for one in shown["queues"]] == [0, 0]
    assert "no lag that is shown counts them" in call(*names["groups show"]).stderr


def test_a_member_says_what_it_will_not_get(
    made: BrokerStore, caplog: pytest.LogCaptureFixture
) -> None:
    """At its start."""
    with Consumer(made.root, "G", {"Orders": None}):
        assert caplog.records == []
    lost = made.zero_last("Orders", 1, 5)
    with Consumer(made.root, "G", {"Orders": None}):
        (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"not consumed: {lost:,} bytes of the log are in no queue")


def test_the_lag_of_a_dispatcher_is_named_where_none_runs(tmp_path: Path, call: Call) -> None:
    """Bytes beyond the watermark."""
    made = four_queues(tmp_path / "store")
    made.write()
    output = DerivedOutput(made.root, tmp_path / "output")
    output.start()
    tail = ("tail", made.root, "Orders", "-n", 1, "--output", output.root)
    done = call(*tail)
    assert (done.returncode, "in no queue" in done.stderr) == (0, False)
    made.put("Orders", 0)
    made.log.write(made.root / "commitlog")
    start, end = made.log.spans[-1]
    said = call(*tail).stderr
    assert (
        f"{end - start} bytes of the log are in no queue, from physical offset {start} on" in said
    )
    assert f"reput run {made.root} --output {output.root} --once" in said
