"""The finds of the doctor one by one, without a command that heals them: borders, and what is none.

``test_doctor`` follows the commands. Outputs are of a log of a few messages, written by hand.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership
from reput.store.config import OnQueueGap, read_store_settings
from reput.upkeep.doctor import Find, examine
from tests.streaming.test_begin_again import LOG_FILE_SIZE, Site
from tests.support.processes import holder


def finds_of(site: Site) -> dict[str, Find]:
    """Each find by its state."""
    finds = examine(site.output.settings(), site.output.root)
    found = {find.state: find for find in finds}
    assert len(found) == len(finds)
    return found


def dispatched(directory: Path, count: int = 10) -> Site:
    """So many messages of one queue."""
    site = Site(directory)
    site.put("Orders", range(count))
    site.write()
    site.output.start()
    return site


def commit(root: Path, offset: int) -> None:
    """A group has committed this offset, as the file below this root says."""
    (root / "config").mkdir(exist_ok=True)
    table = {"offsetTable": {"Orders@g": {"0": offset}, "Elsewhere@g": {"0": 99}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(table))


def test_a_group_that_has_consumed_all_is_not_beyond_its_queue(tmp_path: Path) -> None:
    """One message more is; and the output's own file counts before the store's. A topic without a
    queue has no end that an offset could be beyond."""
    site = dispatched(tmp_path)
    for in_store, in_output, is_beyond in ((10, None, False), (11, None, True), (11, 10, False)):
        commit(site.output.store, in_store)
        if in_output is not None:
            commit(site.output.root, in_output)
        assert set(finds_of(site)) == ({"offsets_beyond_queues"} if is_beyond else set())


def test_a_rebuild_that_was_killed_early_hides_nothing(tmp_path: Path) -> None:
    """It had replaced nothing yet: the rest is told as well, which one that had begun to replace
    hides; while somebody holds the output, it may be running."""
    site = dispatched(tmp_path)
    commit(site.output.store, 11)
    aside = site.output.root / ".reput-rebuild"
    (aside / "new").mkdir(parents=True)
    found = finds_of(site)
    assert set(found) == {"killed_build", "offsets_beyond_queues"}
    root, store = site.output.root, site.output.store
    assert found["killed_build"].command == f"reput rebuild {store} --output {root}"
    (aside / "swap.json").write_text("[]")
    found = finds_of(site)
    assert set(found) == {"killed_rebuild"}
    assert found["killed_rebuild"].command == f"reput run {store} --output {root} --once"
    with holder(Ownership(root).__enter__):
        assert set(finds_of(site)) == {"offsets_beyond_queues"}


@pytest.mark.parametrize(("damaged", "more"), [(5, ""), (6, " and 1 more"), (7, " and 2 more")])
def test_five_places_are_named(tmp_path: Path, damaged: int, more: str) -> None:
    """The others are counted. Damage that a run has passed is history, with nothing to do."""
    site = Site(tmp_path)
    site.put("Orders", range(20))
    places = [at for _, at in site.offsets[1 : 2 * damaged : 2]]
    for at in places:
        site.plain.put(at, struct.pack(">i", 0))
    site.write()
    site.output.start()
    find = finds_of(site)["quarantined"]
    assert (find.is_wrong, find.command) == (False, None)
    shown = ", ".join(f"{at} (bad_size)" for at in places[:5])
    assert f"{damaged} ranges of the log without an entry: {shown}{more};" in find.text


def test_offsets_that_begin_again_are_no_damage(tmp_path: Path) -> None:
    """The find has the command that gives the queue to the new messages, from the first of them
    on, which has a unit already."""
    site = dispatched(tmp_path)
    site.put("Orders", range(5))
    site.write()
    site.output.start()
    found = finds_of(site)
    assert set(found) == {"offsets_begin_again"}
    find = found["offsets_begin_again"]
    assert find.is_wrong
    assert find.command == (
        f"reput rebuild {site.output.store} --output {site.output.root} "
        f"--topic Orders --from {site.offsets[10][1]}"
    )


def test_a_queue_that_closed_up_is_told_where_a_group_is_beyond(tmp_path: Path) -> None:
    """Nobody else reads another message than before."""
    site = Site(tmp_path)
    site.put("Orders", range(3))
    site.put("Orders", range(5, 10))
    site.write()
    site.output.start()
    assert set(finds_of(site)) == set()
    commit(site.output.store, 6)
    found = finds_of(site)
    assert set(found) == {"positions_moved"}
    assert str(found["positions_moved"].command).endswith("--on-queue-gap blank")


def test_a_log_that_begins_at_the_watermark_has_lost_nothing(tmp_path: Path) -> None:
    """All of a file was dispatched before retention took it; what came since is another thing, and
    any command may look at the positions."""
    site = Site(tmp_path)
    site.put("Orders", range(40))
    site.write()
    site.output.start(part=lambda _: LOG_FILE_SIZE)
    site.expire(LOG_FILE_SIZE)
    assert set(finds_of(site)) == {"messages_in_no_queue"}
    assert site.output.verify().differences == ()
    site.output.start()
    assert set(finds_of(site)) == set()


def test_what_cannot_be_read_hides_what_follows(tmp_path: Path) -> None:
    """Its line comes after what was found before it, and nothing that was read later is told."""
    site = dispatched(tmp_path)
    commit(site.output.store, 11)
    (site.output.root / ".reput-rebuild").mkdir()
    first = site.output.state / "watermark"
    first.unlink()
    first.mkdir()
    assert list(finds_of(site)) == ["killed_build", "unreadable"]
    find = finds_of(site)["unreadable"]
    assert (find.is_wrong, find.command) == (True, None)
    assert "Is a directory" in find.text


def test_a_log_that_was_cut_hides_what_follows(tmp_path: Path) -> None:
    """Nothing can be told of queues and groups until a run has seen it."""
    site = dispatched(tmp_path)
    commit(site.output.store, 11)
    site.plain.cut(site.plain.spans[-2][1])
    site.write()
    assert list(finds_of(site)) == ["log_cut"]


def test_a_queue_with_blanks_in_its_gaps_has_moved_nothing(tmp_path: Path) -> None:
    """Each message is at its own offset, wherever groups are."""
    site = Site(tmp_path)
    site.put("Orders", range(3))
    site.put("Orders", range(5, 10))
    site.write()
    site.output.start(on_queue_gap=OnQueueGap.BLANK)
    assert "queue_offset_gap" in (site.output.state / "quarantine.jsonl").read_text()
    commit(site.output.store, 6)
    assert set(finds_of(site)) == set()


def test_the_lag_of_a_run_is_nothing_to_heal(tmp_path: Path) -> None:
    """It is while nobody brings the messages into their queues."""
    site = dispatched(tmp_path)
    site.put("Orders", range(10, 12))
    site.write()
    assert set(finds_of(site)) == {"messages_in_no_queue"}
    with holder(Ownership(site.output.root).__enter__):
        assert set(finds_of(site)) == set()


def test_queues_of_a_broker_that_reach_beyond_the_log_are_cut_by_a_run(tmp_path: Path) -> None:
    """Its log was copied earlier than they were."""
    site = dispatched(tmp_path)
    store = site.output.store
    for name in ("consumequeue", "index"):
        shutil.copytree(site.output.root / name, store / name)
    settings = read_store_settings(store)
    assert examine(settings, store) == []
    site.plain.cut(site.plain.spans[-3][1])
    site.write()
    (find,) = examine(settings, store)
    assert (find.state, find.is_wrong) == ("units_beyond_log", True)
    assert find.command == f"reput run {store} --adopt --once"
    assert find.text.endswith(" Orders/0")
