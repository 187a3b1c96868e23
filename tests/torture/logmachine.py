"""A rule machine of the log: it grows, tears, rolls, loses its end and its oldest files, and is
damaged, while a reader follows it.

The model is the log's image in memory, read by the plain walk. The reader gets each record and each
damaged range once and in order, nothing of a torn record, and in the end all that is whole.
"""

from __future__ import annotations

import copy
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reput.store.log import logtail
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.log.status import Status
from tests.crash.work import one_after_another
from tests.support.plain_walk import PlainWalk
from tests.support.small_store import SmallStore, later_boundary
from tests.support.wire import PlainLog, random_fields
from tests.torture.cases import Case, Kind
from tests.torture.logrot import LOG_FILE_SIZE, ROT

PHASES = (Phase.generate, Phase.shrink)
EXAMPLES = 5
"""Histories of one case."""
STEPS = 30
"""Rules of one history."""
SEEDS = st.integers(0, (1 << 32) - 1)
"""Seeds of what a rule does in detail."""
DAMAGES = sorted(ROT.keys() - {"other"})
"""Kinds of rot that forge nothing: a forged BLANK may hide what a broker appends after it."""
QUEUE_OFFSET_STEPS = (*[1] * 12, 0, 3, -1)
"""Queue offsets count up; now and then one repeats, jumps or goes back."""


class Clock:
    """A clock on which every wait for the log has passed at the next look."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        self._now += 1000.0
        return self._now

    def sleep(self, _seconds: float) -> None:
        """Nothing to wait for."""


class LogRules(RuleBasedStateMachine):
    """The rules of a log, whoever reads it; a case is below ``directory``."""

    directory: Path

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.first = 0
        """Where the log begins now."""
        self.torn: tuple[int, bytes] | None = None
        """The last record's start and bytes, while it is stored in part."""
        self._queues: dict[int, tuple[object, int]] = {}
        """Start of each record -> its queue and queue offset."""
        self._number = 0

    @initialize(start=st.sampled_from((0, 0, 0, 7 * LOG_FILE_SIZE)), seed=SEEDS)
    def begin(self, start: int, seed: int) -> None:
        """A log of a few messages."""
        self.store = SmallStore(self.directory, PlainLog(LOG_FILE_SIZE, start))
        self.first = start
        self.append(5, seed)
        self.open()

    def open(self) -> None:
        """Begin to read the log."""
        raise NotImplementedError

    @property
    def plain(self) -> PlainLog:
        """The model: the log's bytes, those of removed files too."""
        return self.store.plain

    @property
    def read_end(self) -> int:
        """The offset up to which the reader has read the log, and must not see it change."""
        raise NotImplementedError

    @property
    def may_retire(self) -> bool:
        """Whether a broker may remove the oldest file; it keeps the last one."""
        return self.first + LOG_FILE_SIZE < self.plain.start + len(self.plain.image)

    def _whole(self) -> list[tuple[int, int]]:
        """The records that the log still has."""
        return [span for span in self.plain.spans if span[0] >= self.first]

    def _complete(self) -> None:
        if self.torn is not None:
            self.plain.put(*self.torn)
            self.torn = None

    def _append(self, rng: random.Random, **fields: object) -> None:
        queue = rng.choice((b"A", b"A", b"Topic", b"w" * 130)), rng.choice((0, 0, 0, 1, -1))
        following = max((at for key, at in self._queues.values() if key == queue), default=-1)
        self._number += 1
        fields = {
            **random_fields(rng), "topic": queue[0], "queue_id": queue[1],
            "queue_offset": max(following + rng.choice(QUEUE_OFFSET_STEPS), 0),
            # a broker's clock shows no moment again: what was lost comes back with another one
            "store_timestamp": rng.randrange(1 << 32) * 1024 + self._number,
            # as of a client, unique: it tells messages apart that are alike otherwise
            "properties": b"UNIQ_KEY\x01%08d\x02TAGS\x01a\x02" % self._number, **fields,
        }  # fmt: skip
        start = self.plain.append(**fields)
        offset = fields["queue_offset"]
        assert isinstance(offset, int)
        self._queues[start] = queue, offset

    def _write(self) -> None:
        commitlog = self.store.output.store / "commitlog"
        self.plain.write(commitlog)
        for path in commitlog.iterdir():
            if not self.first <= int(path.name) < self.plain.start + len(self.plain.image):
                path.unlink()

    @rule(count=st.integers(1, 8), seed=SEEDS)
    def append(self, count: int, seed: int) -> None:
        """Complete the torn record, and append others."""
        self._complete()
        rng = random.Random(seed)
        for _ in range(count):
            self._append(rng)
        self._write()

    @rule(seed=SEEDS, share=st.integers(0, 99))
    def tear(self, seed: int, share: int) -> None:
        """Append a record of which only a part is stored yet, in percent."""
        self._complete()
        self._append(random.Random(seed))
        start, end = self.plain.spans[-1]
        self.torn = start, self.plain.bytes_at((start, end))
        kept = (end - start) * share // 100
        self.plain.put(start + kept, bytes(end - start - kept))
        self._write()

    @rule(seed=SEEDS)
    def roll(self, seed: int) -> None:
        """Append a record that does not fit into the file."""
        self._complete()
        room = -self.plain.end % LOG_FILE_SIZE
        self._append(random.Random(seed), body=bytes(min(room, LOG_FILE_SIZE // 2)))
        self._write()

    @precondition(lambda self: self.may_retire)
    @rule()
    def retire(self) -> None:
        """Remove the oldest file."""
        self.first += LOG_FILE_SIZE
        self._write()

    @precondition(lambda self: len(self._whole()) > 1)
    @rule(lost=st.integers(1, 12), is_blank_kept=st.booleans())
    def cut(self, lost: int, is_blank_kept: bool) -> None:
        """Lose the last records, and the BLANK before them or not; a broker keeps no damage at the
        end."""
        whole = self._whole()
        lost = min(lost, len(whole) - 1)
        following, end = whole[-lost][0], whole[-lost - 1][1]
        if is_blank_kept and following % LOG_FILE_SIZE == 0:
            end = following
        rest = copy.deepcopy(self.plain)
        rest.cut(end)
        for bad in reversed(PlainWalk(rest).items(self.first, end).bad):
            end = bad.start if bad.end >= end else end
        if not self.may_lose(end):
            return
        self.lose(end)
        self.torn = None
        self.plain.cut(end)
        self._queues = {at: queue for at, queue in self._queues.items() if at < end}
        self._write()

    def may_lose(self, end: int) -> bool:
        """Whether the log may be cut at ``end``; something is left of it."""
        return end > self.first

    def lose(self, end: int) -> None:
        """The log is about to be cut at ``end``."""
        raise NotImplementedError

    @rule(seed=SEEDS, name=st.sampled_from(DAMAGES))
    def damage(self, seed: int, name: str) -> None:
        """Damage what nobody has read yet."""
        plain, before = self.plain, bytes(self.plain.image)
        # the record after damage has been read too: the damage ends there
        seen = next((end for start, end in self._whole() if start >= self.read_end), plain.end)
        low, high = seen - plain.start, plain.end - plain.start
        ROT[name](random.Random(seed), plain)
        if low < high:
            plain.image[:low], plain.image[high:] = before[:low], before[high:]
            changed = [at for at in range(low, high) if plain.image[at] != before[at]]
            if changed:
                self.spoil(plain.start + changed[0], plain.start + changed[-1] + 1)
        else:
            plain.image[:] = before
        self._write()

    def spoil(self, start: int, end: int) -> None:
        """The log was damaged, at ``start``, right before ``end``, and maybe between them."""

    def finish(self) -> None:
        """Check what must hold in the end."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Check the end of a history, unless it has failed before."""
        try:
            if sys.exc_info()[0] is None and hasattr(self, "store"):
                self.finish()
        finally:
            self.close()


class LogMachine(LogRules):
    """A reader that follows the log, and is begun anew now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._log: CommitLog | None = None
        self._position = 0

    def open(self) -> None:
        """Begin to follow the log where it begins."""
        self._position = self.first
        self.restart()

    @property
    def read_end(self) -> int:
        """The end of what was read."""
        return self._position

    @rule()
    def restart(self) -> None:
        """Another reader goes on."""
        self.close()
        self._log = CommitLog([self.store.output.store / "commitlog"])
        self._tail = LogTail(self._log)

    def lose(self, end: int) -> None:
        """A reader of a log that was cut begins anew."""
        self._position = min(self._position, end)
        self.restart()

    @rule(is_settled=st.booleans())
    def read(self, is_settled: bool) -> None:
        """Read up to the sealed end, as at a start or while the log grows."""
        assert self._log is not None
        start, position = self._position, max(self._position, self.first)
        end = self._tail.settled(start) if is_settled else polled(self._tail, start)
        assert self.torn is None or end <= self.torn[0], "a torn record was taken for a whole one"
        assert end >= start, "the sealed end went back"
        wanted: list[int | BadRange] = []
        if start < position:
            wanted.append(BadRange(start, position, Status.SEGMENT_DELETED))
        items = PlainWalk(self.plain).items(position, end)
        starts = {bad.start: bad for bad in items.bad}
        wanted += [starts.get(at, at) for at in sorted((*items.records, *starts))]
        found = [
            one.physical_offset if isinstance(one, Record) else one
            for one in records(self._log, start, end, fail_on_data_loss=False)
        ]
        assert found == wanted
        self._position = max(end, items.end)

    def finish(self) -> None:
        """Nothing whole is left beyond what was read."""
        self.restart()
        self.read(is_settled=True)
        assert later_boundary(self.plain, self._position) is None

    def close(self) -> None:
        """Let go of the log's files."""
        if self._log is not None:
            self._log.close()


def polled(tail: LogTail, start: int) -> int:
    """The sealed end once every wait has passed."""
    ends = [tail.poll(start)]
    while len(ends) < 3 or len({*ends[-3:]}) > 1:
        ends.append(tail.poll(start))
    return ends[-1]


@contextmanager
def without_waits() -> Iterator[None]:
    with one_after_another() as patch:
        patch.setattr(logtail, "time", Clock())
        yield


def run_machine(machine: type[LogRules], case: Case) -> str:
    """Some histories of a machine; the shortest that fails is shown."""

    class Placed(machine):  # type: ignore[misc, valid-type]
        """The machine in its directory."""

    Placed.__name__, Placed.directory = machine.__name__, case.directory
    settings = hypothesis.settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None,
        report_multiple_bugs=False,
        phases=PHASES, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with without_waits():
        seeded = hypothesis.seed(case.rng().getrandbits(64))(Placed)
        run_state_machine_as_test(seeded, settings=settings)
    return f"{EXAMPLES} histories"


KIND = Kind("log machine", partial(run_machine, LogMachine), 2_000, sample=10)
