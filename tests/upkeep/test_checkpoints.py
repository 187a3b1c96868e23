"""Rewinds of an output whose log has everything: every index, gaps, and a damaged record.

The oracle is the product's own dispatch without a rewind, held against RocketMQ and plain models
elsewhere: after a rewind the output is what a run leaves that ended there, and after the next run
it is what it was. The batches of Spark's checkpoint are a stand-in's; ``test_spark_batches`` has
real ones.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from reput.checkpoints.followers import (
    FollowerState,
    read_follower_states,
    write_follower_state,
)
from reput.checkpoints.history import read_history
from reput.checkpoints.keptstate import KeptState, list_kept
from reput.checkpoints.ownership import Ownership
from reput.checkpoints.rewind import Target
from reput.store.errors import CommitLogError, OwnershipError, StoreError, UsageError
from reput.store.log.logtail import LogTail
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep.checkpoints import Rewound, check, prune, read_batch, read_positions, rewind
from tests.crash.workloads import Remote
from tests.support.cli import Call, json_object
from tests.support.crash_images import Outcome, outcome
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.grown_log import SETTINGS, GrownLog
from tests.support.outputs import QueueLog
from tests.support.processes import is_killed_at
from tests.support.sparkless import dispatch
from tests.support.wire import UNIT, file_name

MESSAGES, DAMAGED = 40, 17
SIZES = (SETTINGS["maxHashSlotNum"], SETTINGS["maxIndexNum"])
NO_TIMES = StoreCheckpoint().encode()


class Place:
    """A store with a damaged record, and its output, dispatched in three batches."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.log = GrownLog(directory / "store", rng, ext=True)
        self.log.grow(MESSAGES)
        self.spans = self.log.plain.spans
        self.destroy(DAMAGED)
        self.output = DerivedOutput(self.log.root, directory / "output")
        self.config = DispatcherConfig(self.log.root, self.output.root, once=True)
        self.cuts = [self.spans[at][0] for at in (10, 25)]
        self.dispatch()

    @property
    def root(self) -> Path:
        return self.output.root

    def destroy(self, number: int) -> None:
        """Overwrite a record of the log with zeros."""
        start, end = self.spans[number]
        self.write(start, bytes(end - start))

    def write(self, at: int, data: bytes) -> None:
        size = self.log.plain.file_size
        with (self.log.root / "commitlog" / file_name(at - at % size)).open("r+b") as file:
            file.seek(at % size)
            file.write(data)

    def dispatch(self) -> None:
        dispatch(self.config, self.cuts, with_spark_files=True)

    def rewind(self, offset: int, *, apply: bool = True) -> Rewound:
        target = Target(offset=offset)
        return rewind(self.output.settings(), self.root, None, target, apply=apply)

    def outcome(self) -> Outcome:
        return outcome(self.root, SIZES)

    def watermark(self) -> int:
        found = read_watermark(self.output.state)
        assert found is not None
        return found.end_offset


@pytest.fixture
def place(ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    return Place(ram_path, random.Random(seed))


def ended_at(place: Place, end: int) -> Outcome:
    """The output of a run that was stopped there."""
    config = DispatcherConfig(place.log.root, place.root.with_name("fresh"), once=True)
    with running(config) as run:
        if end > run.position:
            run.commit(run.scan(end))
    found = outcome(config.output, SIZES)
    shutil.rmtree(config.output)
    return found


def comparable(found: Outcome) -> Outcome:
    """Without what differs while nothing is dispatched: an empty index file after a full one, and
    the checkpoint, which a new output does not have, and which tells whether that file is there."""
    index = found["index"]
    assert isinstance(index, list)
    return {**found, "index": [one for one in index if one.entries], "checkpoint": None}


def test_a_rewound_output_is_what_a_run_leaves_that_ended_there(place: Place) -> None:
    """At every record and at the log's beginning, directly and after the next run."""
    first = place.root.with_name("first")
    place.output.keep(first)
    whole = place.outcome()
    ledger = whole["ledger"]
    assert isinstance(ledger, list) and any("zero_hole" in line for line in ledger)
    for start, _ in place.spans:
        place.output.restore(first)
        place.rewind(start)
        wanted = ended_at(place, start)
        assert comparable(place.outcome()) == comparable(wanted), start
        if start and len(place.output.index()) == len(wanted["index"]):  # type: ignore[arg-type]
            # a run without a unit so far writes no checkpoint; zeros say the same
            assert place.outcome()["checkpoint"] == (wanted["checkpoint"] or NO_TIMES), start
        assert place.output.verify().differences == (), start
        place.dispatch()
        assert place.outcome() == whole, start
    assert place.output.verify().differences == ()


def test_batches_are_listed_with_both_ends_and_their_size(place: Place, call: Call) -> None:
    """For people, below their headings, and for programs; the first one began at the log's
    start."""
    words = ("checkpoints", "list", place.log.root, "--output", place.root)
    shown = [re.split(r"  +", line.strip()) for line in call(*words).stdout.splitlines()]
    headings = ["batch", "from", "to", "bytes"]
    at = next(at for at, cells in enumerate(shown) if cells[:4] == headings)
    ends = [*pairwise([0, *place.cuts, place.spans[-1][1]])]
    wanted = [
        [str(number), str(begin), str(end), f"{end - begin:,}"]
        for number, (begin, end) in enumerate(ends)
    ]
    assert [cells[:4] for cells in shown[at + 2 : at + 5]] == wanted
    batches = json_object(call(*words, "--json"))["batches"]
    assert [[one[name] for name in headings] for one in batches] == [
        [number, begin, end, end - begin] for number, (begin, end) in enumerate(ends)
    ]


def test_a_torn_unit_is_not_the_last_that_is_kept(place: Place) -> None:
    """A power cut has left a queue with one unit, whose offset lost its first bytes. It looks like
    one of a message that is kept, later than all others; the log has none there."""
    (start, end), (second, _) = place.spans[:2]
    unit = UNIT.pack(start + 1, end - start - 1, 0)
    path = place.root / "consumequeue" / "torn" / "0" / file_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(unit.ljust(SETTINGS["mappedFileSizeConsumeQueue"], b"\0"))
    place.config.abort_file.write_bytes(b"")
    place.rewind(second)
    assert comparable(place.outcome()) == comparable(ended_at(place, second))


def listed_from(files: dict[str, bytes], offset: int) -> int:
    """Lines of the ledger about this place of the log and later ones."""
    lines = map(json.loads, files["reput/quarantine.jsonl"].splitlines())
    return sum(line["physical_offset"] >= offset for line in lines)


def test_a_dry_run_says_what_is_cut_and_changes_nothing(place: Place) -> None:
    """The figures are those of the log and of the files, counted otherwise."""
    start, at = place.spans[20][0], place.log.units_of(20)
    before = tree(place.root)
    found = place.rewind(start + 5, apply=False)
    assert tree(place.root) == before
    plan = found.rewind
    assert (plan.offset, plan.asked_offset, plan.watermark) == (start, start + 5, place.watermark())
    assert plan.messages == MESSAGES - 20
    assert plan.units == at
    # Spark begins where its second batch began
    first, second = place.cuts
    note = f"spark checkpoint is at {second}: rewound at {first}"
    assert (plan.plan.start, plan.plan.notes) == (first, (note,))
    assert plan.queues == len({queue for queues in place.log.queues[20:] for queue in queues})
    assert plan.ledger_lines == listed_from(before, start)
    damaged = place.spans[DAMAGED][0]
    plan_of_damage = place.rewind(damaged, apply=False).rewind
    assert plan_of_damage.ledger_lines == listed_from(before, damaged) > plan.ledger_lines
    assert found.batches == (1, 2)
    assert found.kept is None and not found.applied
    done = place.rewind(start + 5)
    assert done.rewind == plan
    assert done.applied
    assert done.kept is not None
    assert (done.kept / "watermark").read_bytes() == before["reput/watermark"]
    place.dispatch()
    assert tree(place.root / "consumequeue") == {
        name.partition("/")[2]: data for name, data in before.items()
        if name.startswith("consumequeue/")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (Target(batch=0), 0),
        (Target(batch=1), 10),
        (Target(batch=2), 25),
        (Target(time_ms=1_700_000_000_000 + 31_000), 30),
        (Target(time_ms=1_700_000_000_000 + 30_001), 30),
        (Target(time_ms=0), 0),
    ],
)
def test_a_target_is_a_place_of_the_log(place: Place, target: Target, wanted: int) -> None:
    """The store times are a second apart, the first one second after the clock's begin."""
    found = rewind(place.output.settings(), place.root, None, target, apply=False)
    assert found.rewind.offset == found.rewind.asked_offset == place.spans[wanted][0]


def test_a_target_within_something_is_taken_down_to_its_start(place: Place) -> None:
    """A record, a damaged range, the BLANK at a file's end; files begin at their first byte."""
    size = place.log.plain.file_size
    last = max(end for _, end in place.spans if end <= size)
    for asked, wanted in (
        (place.spans[3][1] - 1, place.spans[3][0]),
        (place.spans[DAMAGED][0] + 100, place.spans[DAMAGED][0]),
        (size - 1, last),
        (size, size),
    ):
        found = place.rewind(asked, apply=False).rewind
        assert (found.offset, found.asked_offset) == (wanted, asked)
    target = Target(file=file_name(size))
    assert (
        rewind(place.output.settings(), place.root, None, target, apply=False).rewind.offset == size
    )


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target(batch=3), "start of batch 3 is not known.* 0 to 2"),
        (Target(offset=1 << 40), "the dispatched log is"),
        (Target(file="00000000000000000001"), "the log has no file"),
        (Target(file="../commitlog"), "the log has no file"),
        (Target(time_ms=1 << 50), "nothing to rewind"),
    ],
)
def test_a_target_that_the_log_does_not_have_is_refused(
    place: Place, target: Target, text: str
) -> None:
    """In one line that names what there is."""
    with pytest.raises(UsageError, match=text) as caught:
        rewind(place.output.settings(), place.root, None, target, apply=False)
    if target.file is not None:
        names = sorted(path.name for path in (place.log.root / "commitlog").iterdir())
        assert len(names) > 1
        assert str(caught.value).endswith(f"; it has {names[0]} to {names[-1]}")


def test_nothing_happens_at_the_watermark(place: Place) -> None:
    """A rewind to where the output stands."""
    before = tree(place.root)
    found = place.rewind(place.watermark())
    assert found.kept is None
    assert {name for name, data in tree(place.root).items() if before.get(name) != data} <= {
        "reput/owner.json", "lock",
    }  # fmt: skip


def test_a_dispatchers_output_is_refused(place: Place) -> None:
    """A dry run may look meanwhile."""
    with Ownership(place.root):
        place.rewind(0, apply=False)
        before = tree(place.root)
        with pytest.raises(OwnershipError, match="another dispatcher"):
            place.rewind(0)
        with pytest.raises(OwnershipError, match="another dispatcher"):
            prune(place.output.settings(), place.root, None, apply=True)
        assert tree(place.root) == before


def test_a_log_that_was_damaged_since_is_refused(place: Place) -> None:
    """Its entries could not be built again; beyond the damage a rewind is possible."""
    place.destroy(30)
    before = tree(place.root)
    with pytest.raises(CommitLogError, match=f"rewind to {place.spans[30][1]} or later"):
        place.rewind(place.spans[29][0])
    changed = {name for name, data in tree(place.root).items() if before.get(name) != data}
    assert changed <= {"reput/owner.json", "lock"}
    place.rewind(place.spans[30][1])


def test_a_watermark_at_which_no_record_ends_any_more_is_refused(place: Place) -> None:
    """It was lowered to the end of a damaged record, and then the next one was damaged too: where
    the output ends is no longer a place of the log."""
    place.rewind(place.spans[DAMAGED][1])
    place.destroy(DAMAGED + 1)
    before = tree(place.root / "consumequeue")
    with pytest.raises(CommitLogError, match=f"no record ends at .* {place.spans[DAMAGED][1]}"):
        place.rewind(place.spans[DAMAGED - 2][0])
    assert tree(place.root / "consumequeue") == before


def without_first_file(directory: Path, *queue_offsets: int) -> tuple[DerivedOutput, QueueLog]:
    """An output with one queue of these messages, five to a file, whose first file is gone."""
    log, store = QueueLog(100), directory / "store"
    for queue_offset in queue_offsets:
        log.append(queue_offset)
    log.plain.write(store / "commitlog")
    (store / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={log.plain.file_size}\nmappedFileSizeConsumeQueue=100\n"
        "messageIndexEnable=false\n"
    )
    output = DerivedOutput(store, directory / "output")
    output.start()
    (output.root / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
    return output, log


def test_a_queue_that_would_lose_its_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention took a queue's first file, in which a gap was closed: without its last units
    the queue would begin anew at its messages' own offsets."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    output, log = without_first_file(tmp_path, 0, 1, 2, *range(23, 32))
    first = log.plain.spans[5]
    with pytest.raises(StoreError, match=f"topic T queue 0 .* rewind to {first[1]} or later"):
        rewind(output.settings(), output.root, None, Target(offset=first[0]), apply=True)
    queue = output.root / "consumequeue" / "T" / "0"
    wanted = tree(queue)
    rewind(output.settings(), output.root, None, Target(offset=first[1]), apply=True)
    assert tree(queue) != wanted
    output.start()
    assert tree(queue) == wanted


def test_a_queue_whose_messages_name_their_places_may_lose_all_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get the same ones again."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    output, log = without_first_file(tmp_path, *range(12))
    wanted = tree(output.root / "consumequeue")
    target = Target(offset=log.plain.spans[5][0])
    assert rewind(output.settings(), output.root, None, target, apply=True).rewind.units == 7
    output.start()
    assert tree(output.root / "consumequeue") == wanted


def test_a_follower_gets_the_range_again(place: Place) -> None:
    """Its target drops what comes later, and has every message once in the end."""
    remote = Remote()
    config = DispatcherConfig(place.log.root, place.root, once=True, followers=(remote,))
    dispatch(config)
    rows, start = list(remote.rows), place.spans[20][0]
    new = place.output.state / "followers" / "new.json"
    new.write_text('{"name": "new", "target": "unknown yet"}')
    write_follower_state(place.output.state, FollowerState("past", "", position=start))
    # where a target stands that has not said so yet is not known
    assert place.rewind(start).followers == ("new", "remote")
    for name in ("new", "past"):
        (place.output.state / "followers" / f"{name}.json").unlink()
    (state,) = read_follower_states(place.output.state)
    assert state.truncate_to == start
    assert remote.rows == rows
    given: list[int] = []
    remote.write = lambda first, end, found: (  # type: ignore[method-assign]
        given.append(first), Remote.write(remote, first, end, found)
    )[1]  # fmt: skip
    dispatch(config)
    assert given[0] == start
    assert remote.rows == rows


def test_a_rewind_that_is_killed_anywhere_leaves_the_old_state_or_the_new_one(
    place: Place, seed: int
) -> None:
    """Before each of its operations, of which a part of those that copy: the watermark is one of
    two, nothing below it is wrong, the copy is whole or absent, and the next run ends as without
    the rewind."""
    first = place.root.with_name("first")
    place.output.keep(first)
    whole, old = place.outcome(), place.watermark()
    rng = random.Random(seed)
    # a line of the ledger is beyond it
    start = rng.choice(place.spans[:DAMAGED])[0]
    sides, ordinal, is_killed = set(), 0, True
    kept: list[KeptState] = []
    while is_killed:
        ordinal += 1 if kept else rng.choice((1, 2, 3))
        place.output.restore(first)
        is_killed = is_killed_at(ordinal, lambda: place.rewind(start))
        found = place.watermark()
        sides.add(found)
        kept = list_kept(place.root, place.output.state / "spark")
        assert [(one.from_offset, one.to_offset) for one in kept] in ([], [(old, start)])
        if found == start:
            copy = place.output.state / "rewound-1"
            for name in ("watermark", "quarantine.jsonl"):
                before = (first / "reput" / name).read_bytes()
                assert (copy / name).read_bytes() == before, ordinal
            assert tree(copy / "spark") == tree(first / "reput" / "spark")
        else:
            # what a killed rewind has noted for its next step, and not done
            assert tree(place.root / "consumequeue") == tree(first / "consumequeue"), ordinal
            assert place.outcome()["ledger"] == whole["ledger"], ordinal
        history = read_history(place.output.state / "spark", "")
        assert not any("is cut" in line for line in history.damage)
        place.dispatch()
        assert place.outcome() == whole, ordinal
    assert sides == {old, start}
    assert ordinal > 30
    print(f"operations={ordinal - 1} rewound_to={start}")


def test_batches_are_shown_with_what_the_log_has_of_them(place: Place) -> None:
    """The range of the second one has the damaged record."""
    settings = place.output.settings()
    found = read_positions(settings, place.root, None)
    borders = [0, *place.cuts, place.watermark()]
    assert [(one.start, one.end) for one in found.history.batches] == [*pairwise(borders)]
    batch = read_batch(settings, place.root, None, 1)
    assert batch.messages == 14
    assert [(one.start, one.end) for one in batch.bad] == [place.spans[DAMAGED]]
    assert (batch.first_stored_ms, batch.last_stored_ms) == (1_700_000_011_000, 1_700_000_025_000)
    assert batch.bad and read_batch(settings, place.root, None, 0).messages == 10
    place.rewind(place.spans[12][0])
    found = read_positions(settings, place.root, None)
    assert [one.end <= found.watermark for one in found.history.batches] == [True, False]
    min((place.log.root / "commitlog").iterdir()).unlink()
    gone = read_batch(settings, place.root, None, 0)
    assert (gone.batch.end, gone.messages, gone.first_stored_ms) == (place.cuts[0], None, None)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "digit": lambda data: data.replace(b'"offset": ', b'"offset": 9'),
}


@pytest.mark.parametrize("how", sorted(DAMAGES))
@pytest.mark.parametrize("name", ["spark/offsets/1", "spark/reput-start", "watermark"])
def test_damage_is_found_and_said(place: Place, name: str, how: str) -> None:
    """``check`` names the file, and what a start makes of it; a rewind by offset still works."""
    settings, path = place.output.settings(), place.output.state / name
    sound = check(settings, place.root, None)
    assert (sound.problems, sound.next_start) == ((), (f"goes on at {place.cuts[1]}",))
    place.config.abort_file.write_bytes(b"")
    (_, note) = check(settings, place.root, None).next_start
    assert note.endswith(f"a start clears what is beyond {place.watermark()}")
    place.config.abort_file.unlink()
    data = path.read_bytes()
    damaged = DAMAGES[how](data)
    if name == "watermark":
        # the older one of the two slots
        damaged = data[:4096] + bytes(4) + data[4100:] if data[4096:] < data[:4096] else None
        damaged = damaged or bytes(4) + data[4:]
    path.write_bytes(damaged)
    found = check(settings, place.root, None)
    assert any(name.removeprefix("spark/") in line for line in found.problems), found
    place.rewind(place.spans[5][0])
    place.dispatch()
    assert place.watermark() == place.spans[-1][1]


def test_kept_states_are_removed_on_request_alone(place: Place) -> None:
    """Copies of rewinds, checkpoints that starts moved, and the rest of a copy that was killed."""
    spark = place.output.state / "spark"
    place.rewind(place.spans[30][0])
    place.rewind(place.spans[20][0])
    place.dispatch()
    (spark / "offsets" / "x").write_text("no batch")
    place.dispatch()
    (place.output.state / "rewound.partial").mkdir()
    names = ["rewound-1", "rewound-2", "spark.replaced-1"]
    for apply in (False, False, True):
        found = prune(place.output.settings(), place.root, None, apply=apply)
        assert [one.path.name for one in found] == names
    assert prune(place.output.settings(), place.root, None, apply=False) == []
    assert not any("rewound" in name for name in tree(place.root))
