"""``status`` shows each fault of an output that has all of them: alone, among several stores, and
as the measures of ``--check``."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from reput.checkpoints.followers import FollowerState, write_follower_state
from reput.store.state.ledger import Ledger, LedgerEntry
from tests.cli.test_errors import assert_one_line
from tests.cli.test_status_check import measures
from tests.support.broker_store import BrokerStore
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput

SINCE = "2026-01-31T20:00:00+08:00"


@pytest.fixture
def faulty(tmp_path: Path) -> BrokerStore:
    """A store with a message an hour old that is not dispatched; its output has two ranges of bad
    bytes, three gaps, and two followers, of which one fails."""
    made = BrokerStore(tmp_path / "stores" / "one")
    made.put("Orders", 0, 7)
    made.write()
    output = DerivedOutput(made.root, tmp_path / "outputs" / "one")
    output.start()
    made.log.append(
        topic=b"Orders", queue_offset=7, store_timestamp=int((time.time() - 3600) * 1000)
    )
    made.log.write(made.root / "commitlog")
    with_ledger(output.state)
    for follower in (
        FollowerState("delta", "lake/t", position=3, rows=1234, lost_bytes=56, counts={"odd": 0}),
        FollowerState("kafka", "h:1", error="no broker", failing_since=SINCE, internal_left_out=2),
    ):
        write_follower_state(output.state, follower)
    return made


def with_ledger(state: Path) -> None:
    ledger = Ledger(state)
    ledger.add(LedgerEntry(3, 10, "bad_magic"))
    ledger.add(LedgerEntry(20, 25, "bad_size"))
    for place in (30, 40, 50):
        ledger.add(LedgerEntry(place, place, "queue_offset_gap"))
    ledger.sync()


def places(faulty: BrokerStore) -> tuple[Sequence[object], Sequence[object]]:
    """The one store, and the same as one of several."""
    stores, outputs = faulty.root.parent, faulty.root.parent.with_name("outputs")
    one = (faulty.root, "--output", outputs / "one")
    return one, ("--stores", stores / "*", "--outputs", outputs)


def test_a_row_of_several_stores_has_each_fault(faulty: BrokerStore, call: Call) -> None:
    """In the last column; the figures stand below their headings."""
    one, several = places(faulty)
    found = json_object(call("status", *one, "--json"))
    heading, _, row = (
        re.split(r"  +", line) for line in call("status", *several).stdout.splitlines()[1:4]
    )
    shown = dict(zip(heading, row, strict=True))
    start, end = faulty.log.spans[-1]
    assert (found["watermark"], found["lag_bytes"]) == (start, end - start)
    assert shown.pop("lag").startswith("1 h ")
    assert shown == {
        "store": "one", "watermark": str(start), "in bytes": f"{end - start} B", "writer": "none",
        "faults": f"kafka fails, {end - start} B in no queue, 12 B quarantined, 3 gaps",
    }  # fmt: skip


def test_a_sound_store_has_no_faults(tmp_path: Path, call: Call) -> None:
    made = BrokerStore(tmp_path / "stores" / "one")
    made.put("Orders", 0, 3)
    made.write()
    DerivedOutput(made.root, tmp_path / "outputs" / "one").start()
    _, several = places(made)
    row = call("status", *several).stdout.splitlines()[3]
    assert re.split(r"  +", row)[2:] == ["0.0 s", "0 B", "none", "none"]


def test_measures_are_those_of_the_state(faulty: BrokerStore, call: Call) -> None:
    """Each under its own name."""
    one, _ = places(faulty)
    done = call("status", *one, "--check", "--warn-lag", "1m", "--crit-lag", "2h")
    start, end = faulty.log.spans[-1]
    found = measures(done.stdout.strip())
    assert 3600 <= found.pop("lag")[0] < 4000
    values = {name: (value, unit) for name, (value, unit, *_) in found.items()}
    assert values == {
        "lag_bytes": (end - start, "B"), "unqueued": (end - start, "B"), "quarantine": (12, "B"),
        "gaps": (3, ""),
    }  # fmt: skip


def test_a_label_of_measures_ends_where_it_ends(tmp_path: Path, call: Call) -> None:
    """A reader would take the rest of a name for the value."""
    for name in ("a'b=c", "d\x1be"):
        made = BrokerStore(tmp_path / "stores" / name)
        made.put("Orders", 0)
        made.write()
        DerivedOutput(made.root, tmp_path / "outputs" / name).start()
    _, several = places(made)
    done = call("status", *several, "--check")
    assert done.returncode == 0
    labels = {name.rpartition(" ")[0] for name in measures(done.stdout.strip())}
    assert labels == {"a_b_c", "d_e"}
    assert done.stdout.startswith("REPUT OK - 2 stores | ")


def test_followers_are_shown_with_what_they_count(faulty: BrokerStore, call: Call) -> None:
    """Counts that are 0 are left out; the time of a failure is shown in UTC."""
    one, _ = places(faulty)
    lines = [re.split(r"  +", line) for line in call("status", *one).stdout.splitlines()]
    of_follower: dict[str, dict[str, str]] = {}
    for name, *rest in lines:
        if name.startswith("follower "):
            fields = of_follower.setdefault(name, {})
        elif of_follower and rest:
            fields.setdefault(name, rest[0])
    end = faulty.log.spans[-1][1]
    delta, kafka = of_follower.values()
    assert (delta["target"], delta["position"], delta["lag"]) == ("lake/t", "3", f"{end - 3} B")
    assert delta["counts"] == "rows 1,234, lost bytes 56"
    assert (delta["failing since"], delta["last error"]) == ("none", "none")
    assert (kafka["position"], kafka["lag"]) == ("unknown", "unknown")
    assert kafka["counts"] == "internal records left out 2"
    assert kafka["failing since"] == "2026-01-31T12:00:00.000Z"
    assert kafka["last error"] == "no broker"
    quarantine = next(rest[0] for name, *rest in lines if name == "quarantine")
    assert quarantine == "bad_magic 1 range of 7 bytes, bad_size 1 range of 5 bytes"


def test_a_topic_has_as_many_messages_as_its_queues_still_hold(tmp_path: Path, call: Call) -> None:
    """The first files of the log and of a queue are gone."""
    made = BrokerStore(tmp_path)
    made.put("Orders", 0, 50)
    made.put("Orders", 1, 3)
    made.write()
    first = made.root / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    first.unlink()
    (row,) = [line for line in call("status", made.root).stdout.splitlines() if "Orders" in line]
    assert row.split() == ["Orders", "2", "33"]


@pytest.mark.parametrize("extra", ["--json", "--watch"])
def test_a_check_is_one_line_alone(tmp_path: Path, call: Call, extra: str) -> None:
    """Refused, before the store is looked at."""
    done = call("status", tmp_path / "none", "--check", extra)
    assert done.returncode == 2
    if extra != "--json":
        assert_one_line(done, 2, "leave out --watch, --json and --topic")
    assert done.stdout == ""
