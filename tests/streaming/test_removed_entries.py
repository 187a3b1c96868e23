"""Queues and index files that somebody has removed: a start builds them again, or refuses with the
command that does.

The oracle is a fresh dispatch of the log. Logs are plain bytes of the tests' own.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import reput.upkeep.rebuild
from reput.checkpoints.followers import read_follower_states
from reput.checkpoints.rewind import Target
from reput.store.config import StoreSettings
from reput.store.errors import ReputError, StoreError
from reput.store.state.ends import read_ends
from reput.store.state.visible import read_end
from reput.store.state.watermark import read_watermark
from reput.streaming.commit import OnVisible
from reput.streaming.config import DispatcherConfig
from reput.streaming.progress import Progress
from reput.streaming.sparkless import running
from reput.upkeep import checkpoints as positions
from reput.upkeep.compare import DIRECTORY_KINDS
from reput.upkeep.expiry import expire
from tests.streaming.test_cut_log import Place
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.operations import Killed, before_operations
from tests.support.seeds import seed
from tests.support.sparkless import dispatch
from tests.support.tables import plain_columns, plain_rows
from tests.support.wire import PlainLog, file_name

__all__ = ["seed"]

MESSAGES = 60


@pytest.fixture
def place(ram_path: Path, seed: int) -> Place:
    """An output that was dispatched, stopped, and started again without news."""
    found = Place(ram_path, random.Random(seed))
    found.log.grow(MESSAGES)
    found.dispatch()
    found.dispatch()
    return found


def kill(place: Place) -> None:
    """Leave what a killed run leaves: readers see its batch, and it has not ended."""
    with pytest.raises(KeyboardInterrupt):
        place.output.start(on_visible=_die_after(1))


def _die_after(batches: int) -> OnVisible:
    left = [None] * batches

    def die(_settings: object, runs: object) -> None:
        if runs is not None:
            left.pop()
            if not left:
                raise KeyboardInterrupt

    return die


def remove_queues(root: Path) -> None:
    """RocketMQ's folk remedy."""
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue")
    (root / "consumequeue").mkdir()


def remove_files(root: Path) -> None:
    """The directories stay."""
    for path in (*root.glob("consumequeue/*/*/*"), *root.glob("batchconsumequeue/*/*/*")):
        path.unlink()


@pytest.mark.parametrize(
    ("remove", "news", "is_killed", "with_index"),
    [
        (remove_queues, 0, False, False),
        (remove_queues, 5, True, True),
        (remove_files, 5, False, True),
        (remove_files, 0, True, False),
    ],
)
def test_queues_that_are_all_gone_are_built_again(
    place: Place, remove: Callable[[Path], None], news: int, is_killed: bool, with_index: bool
) -> None:
    """Whether or not messages came since, and whatever of the rest is gone, the output is that of a
    fresh dispatch after the next run."""
    if is_killed:
        place.log.grow(7)
        kill(place)
    remove(place.output.root)
    if with_index:
        shutil.rmtree(place.output.root / "index")
    place.log.grow(news)
    place.dispatch()
    place.check()
    before = _derived(place)
    place.dispatch()
    assert _derived(place) == before


def _derived(place: Place) -> dict[str, bytes]:
    files = tree(place.output.root)
    return {name: data for name, data in files.items() if not name.startswith("reput/")}


def check_that_building_again_is_resumed(place: Place) -> None:
    """A run is killed after half of the messages: readers hear of these alone, and the next run
    builds the rest."""
    middle = place.log.plain.spans[MESSAGES // 2][0]
    config = DispatcherConfig(place.output.store, place.output.root, once=True)
    with pytest.raises(KeyboardInterrupt):
        dispatch(config, [middle], on_visible=_die_after(1))
    found = read_end(place.output.state)
    assert found is not None
    assert found.end_offset == middle
    place.dispatch()
    place.check()


def test_building_again_is_resumed_after_a_kill(place: Place) -> None:
    """The next start does not refuse the part of the queues that is built by then, and readers
    hear of no more than that part."""
    remove_queues(place.output.root)
    check_that_building_again_is_resumed(place)


def test_what_a_killed_run_has_shown_is_not_kept_without_queues(ram_path: Path, seed: int) -> None:
    """Somebody removes them after the kill: readers hear of what is built again alone."""
    place = Place(ram_path, random.Random(seed), ext=False)
    place.log.grow(MESSAGES)
    place.dispatch()
    durable = place.log.plain.end
    place.log.grow(7)
    kill(place)
    shown = read_end(place.output.state)
    assert shown is not None
    assert shown.end_offset > durable
    remove_queues(place.output.root)
    check_that_building_again_is_resumed(place)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_record_of_entries_that_a_start_cut_does_not_count(place: Place, *, is_cut: bool) -> None:
    """The log was cut, or lost its first file and the output all that was built: a run passes the
    place of the record again, and is killed before it writes another one. Nothing is missed of what
    it has cut."""
    before = place.log.plain.end
    if is_cut:
        place.log.cut(MESSAGES - 10)
    place.log.grow(MESSAGES)
    if not is_cut:
        remove_queues(place.output.root)
        shutil.rmtree(place.output.root / "index")
        (place.log.root / "commitlog" / file_name(0)).unlink()
    assert place.log.plain.end > before

    def die(operation: str, path: str) -> None:
        if operation == "rename" and Path(path).name.startswith("ends"):
            raise Killed

    with pytest.raises(Killed), before_operations(die):
        place.dispatch()
    found = read_watermark(place.output.state)
    assert found is not None
    assert found.end_offset == place.log.plain.end
    place.dispatch()
    assert place.output.verify().differences == ()
    if is_cut:
        place.check()


def test_a_table_gets_nothing_twice_while_queues_are_built_again(place: Place) -> None:
    """A follower keeps its position, and waits for the queues."""
    place.dispatch(table=True)
    rows = plain_rows(place.log.root)
    assert plain_columns(place.table) == rows
    remove_queues(place.output.root)
    place.dispatch(table=True)
    place.check()
    assert plain_columns(place.table) == rows
    (state,) = read_follower_states(place.output.state)
    assert state.rows == len(rows)


def lose_a_queue(root: Path, rng: random.Random) -> None:
    """One queue's directory."""
    shutil.rmtree(rng.choice(sorted(root.glob("consumequeue/*/*"))))


def lose_batch_queues(root: Path, _rng: random.Random) -> None:
    """All queues of one kind."""
    shutil.rmtree(root / "batchconsumequeue")


def lose_a_last_file(root: Path, rng: random.Random) -> None:
    """Remove the last file of a queue that has several."""
    queues = [path for path in root.glob("consumequeue/*/*") if len(list(path.iterdir())) > 1]
    sorted(rng.choice(sorted(queues)).iterdir())[-1].unlink()


def zero_last_units(root: Path, rng: random.Random) -> None:
    """As a disk may do; the file stays."""
    path = sorted(rng.choice(sorted(root.glob("consumequeue/*/*"))).iterdir())[-1]
    units = path.read_bytes().rstrip(b"\0")
    at = (len(units) - 1) // 20 * 20
    path.write_bytes(units[:at].ljust(path.stat().st_size, b"\0"))


def lose_exts(root: Path, _rng: random.Random) -> None:
    """To which the units of queues point."""
    shutil.rmtree(root / "consumequeue_ext")


def lose_the_index(root: Path, _rng: random.Random) -> None:
    """While the queues stay."""
    shutil.rmtree(root / "index")


def lose_the_newest_index_file(root: Path, _rng: random.Random) -> None:
    """With entries, which follows full ones."""
    used = [path for path in sorted((root / "index").iterdir()) if any(path.read_bytes()[68:])]
    used[-1].unlink()


@pytest.mark.parametrize(
    "lose",
    [
        lose_a_queue, lose_batch_queues, lose_a_last_file, zero_last_units, lose_exts,
        lose_the_index, lose_the_newest_index_file,
    ],
)  # fmt: skip
@pytest.mark.parametrize("news", [0, 5])
def test_a_part_that_is_gone_is_refused_with_the_command_that_builds_it(
    place: Place, seed: int, lose: Callable[[Path, random.Random], None], news: int
) -> None:
    """Nothing is written by the refused start, a rewind is refused as well, and the command, when
    it is followed, makes the output that of a fresh dispatch."""
    rng = random.Random(seed)
    lose(place.output.root, rng)
    place.log.grow(news)
    before = _derived(place)
    with pytest.raises(StoreError, match="lack entries that were built") as refused:
        place.dispatch()
    with pytest.raises(StoreError, match="lack entries that were built"):
        settings, target = place.output.settings(), Target(offset=place.log.plain.spans[3][0])
        positions.rewind(settings, place.output.root, None, target, apply=True)
    assert positions.check(settings, place.output.root, None).problems
    assert _derived(place) == before
    _follow(str(refused.value), place)
    place.dispatch()
    place.check()
    place.log.grow(5)
    place.dispatch()
    place.check()


def _follow(error: str, place: Place) -> None:
    """Call the command that an error names, without Spark."""
    command = shlex.split(error[error.index("reput rebuild") :].partition(" builds")[0])
    assert command[:5] == [
        "reput",
        "rebuild",
        str(place.output.store),
        "--output",
        str(place.output.root),
    ]
    assert command[5:] in ([], ["--only", "index"])
    kinds = DIRECTORY_KINDS if not command[5:] else command[6:]

    def build(config: DispatcherConfig, *_rest: object) -> Progress:
        dispatch(config)
        return Progress(0, 0)

    config = DispatcherConfig(place.output.store, place.output.root, once=True)
    reput.upkeep.rebuild.rebuild(config, threading.Event(), build=build, kinds=kinds)


def test_a_queue_that_came_after_the_record_is_missed_too(place: Place) -> None:
    """After a kill the log since the record tells of it."""
    place.log.grow(1)
    before = place.log.plain.end
    place.log.plain.append(topic=b"New", queue_id=0, queue_offset=0, body=b"")
    end = place.log.plain.end
    place.log.plain.append(topic=b"New", queue_id=0, queue_offset=1, body=b"")
    place.log.write()
    config = DispatcherConfig(place.output.store, place.output.root, once=True)
    with pytest.raises(KeyboardInterrupt):
        dispatch(config, [before, end], on_visible=_die_after(3))
    recorded, found = read_ends(place.output.state), read_watermark(place.output.state)
    assert recorded is not None
    assert found is not None
    assert (recorded.end_offset, found.end_offset) == (before, end)
    shutil.rmtree(place.output.root / "consumequeue" / "New")
    with pytest.raises(ReputError, match="topic New queue 0"):
        place.dispatch()


def test_an_output_without_a_record_is_looked_at_by_its_log(place: Place) -> None:
    """As one that an earlier version has built, or whose record is damaged: the messages of the
    last file of the log must have their units."""
    (place.output.state / "ends").write_bytes(b"{}")
    remove_queues(place.output.root)
    place.dispatch()
    place.check()
    (place.output.state / "ends").unlink()
    place.dispatch()
    assert read_ends(place.output.state) is not None


def rewind(settings: StoreSettings, root: Path, target: Target) -> None:
    """Rewind to the target, or as far as the answer says that retention allows."""
    try:
        positions.rewind(settings, root, None, target, apply=True)
    except StoreError as error:
        possible = re.search(r"rewind to (\d+) or later$", str(error))
        assert possible, error
        positions.rewind(settings, root, None, Target(offset=int(possible[1])), apply=True)


def test_what_retention_and_expiry_remove_is_not_missed(ram_path: Path, seed: int) -> None:
    """The log loses its oldest files one by one, queues lose files, and whole queues go: no start
    takes that for a loss, also after a kill, a rewind and a repair."""
    place = Place(ram_path, random.Random(seed))
    place.log.plain.append(topic=b"Old", queue_id=0, queue_offset=0, body=b"")
    place.log.grow(MESSAGES * 2)
    place.dispatch()
    root, removed = place.output.root, 0
    logs = sorted((place.output.store / "commitlog").iterdir())
    for number, path in enumerate(logs[:-1]):
        path.unlink()
        if number % 3 == 1:
            with running(DispatcherConfig(place.output.store, root, once=True)) as run:
                run.committer.tend()
        place.dispatch(retention=number % 2 == 0)
        settings = place.output.settings()
        found = expire(settings, root, apply=True, remove_unused=True)
        removed += len(found.files) + len(found.unused_queues)
        place.dispatch()
        if number % 2:
            target = Target(offset=place.log.plain.spans[-3][0])
            rewind(settings, root, target)
        place.dispatch()
        assert place.output.verify(repair=number % 3 == 0).differences == ()
    assert removed
    assert not (root / "consumequeue" / "Old").exists()


def test_a_replay_that_stops_early_records_nothing(place: Place) -> None:
    """A queue that is gone, and that it has not come to, is missed at the next start."""
    place.log.plain.append(topic=b"New", queue_id=0, queue_offset=0, body=b"")
    place.log.write()
    place.dispatch()
    (place.output.state / "ends").unlink()
    shutil.rmtree(place.output.root / "consumequeue" / "New")
    middle = place.log.plain.spans[MESSAGES // 2][0]
    place.output.start(replay_from="earliest", part=lambda _: middle)
    with pytest.raises(StoreError, match="topic New queue 0"):
        place.dispatch()


@pytest.mark.parametrize("topics", [None, ("Orders", "Other"), ("Other",)])
def test_a_topic_that_a_broker_has_deleted_is_not_missed(
    tmp_path: Path, topics: tuple[str, ...] | None
) -> None:
    """In a broker's own store, whose table of topics says so; without a table nothing does."""
    plain, store = PlainLog(1 << 12), tmp_path / "store"
    for topic in (b"Orders", b"Other"):
        for queue_offset in range(5):
            plain.append(topic=topic, queue_id=0, queue_offset=queue_offset, body=b"")
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=200\n"
    )
    output = DerivedOutput(store, store)
    output.start()
    if topics is not None:
        (store / "config").mkdir(exist_ok=True)
        table = json.dumps({"topicConfigTable": {topic: {} for topic in topics}})
        (store / "config" / "topics.json").write_text(table)
    shutil.rmtree(store / "consumequeue" / "Orders")
    if topics == ("Other",):
        output.start()
        return
    with pytest.raises(StoreError, match="topic Orders queue 0"):
        output.start()


def test_the_queue_of_the_last_message_is_missed(place: Place) -> None:
    """Its entry ends right at the watermark."""
    place.log.plain.append(topic=b"Last", queue_id=0, queue_offset=0, body=b"")
    place.log.write()
    place.dispatch()
    place.dispatch()
    shutil.rmtree(place.output.root / "consumequeue" / "Last")
    with pytest.raises(StoreError, match="topic Last queue 0"):
        place.dispatch()


def test_a_record_beyond_the_watermark_does_not_count(place: Place) -> None:
    """The newest slot of the watermark rots, and a start whose run was cut short clears what is
    beyond the older one: the next start misses nothing."""
    path = place.output.state / "watermark"
    before = path.read_bytes()
    place.log.grow(20)
    place.dispatch()
    recorded = read_ends(place.output.state)
    path.write_bytes(before)
    (place.output.state / "abort").touch()
    config = DispatcherConfig(place.output.store, place.output.root, once=True)
    with running(config) as run:
        assert recorded is not None
        assert recorded.end_offset > run.position
    place.dispatch()
    place.check()


_LISTS = b"INNER_MULTI_DISPATCH\x01%s\x02INNER_MULTI_QUEUE_OFFSET\x01%s\x02"


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("queue_offset_gap", {"queue_offset": 3}),
        ("bad_multi_dispatch", {"properties": _LISTS % (b"%LMQ%a", b"x")}),
        ("topic_name", {"properties": _LISTS % (b"%LMQ%\x1b", b"0")}),
    ],
)
def test_the_unit_of_a_message_that_is_listed_is_missed(
    tmp_path: Path, reason: str, fields: dict[str, object]
) -> None:
    """The ledger lists the message for what is strange about it, and it has its unit all the same.
    Without a record of ends the log alone tells of it."""
    plain, store = PlainLog(1 << 12), tmp_path / "store"
    plain.append(topic=b"Orders", queue_offset=0, body=b"")
    plain.append(**{"topic": b"Orders", "queue_offset": 1, "body": b""} | fields)
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=200\n"
        "enableMultiDispatch=true\nenableLmq=true\nmessageIndexEnable=false\n"
    )
    output = DerivedOutput(store, tmp_path / "output")
    output.start()
    (line,) = (output.state / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == reason
    (output.state / "ends").unlink()
    output.start()
    (output.state / "ends").unlink()
    path = output.root / "consumequeue" / "Orders" / "0" / file_name(0)
    path.write_bytes(path.read_bytes()[:20].ljust(200, b"\0"))
    with pytest.raises(StoreError, match="topic Orders queue 0"):
        output.start()
