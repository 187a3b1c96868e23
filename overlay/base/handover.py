"""The handover of a base to its broker, which is to run again after an overlay has stood in for it.

The base stays as it is, and by its own notes the broker would deliver once more what the overlay
has delivered, and ask again about the transactions that have ended there. So files are written
that take the place of the broker's notes: each is advanced as far as everything before has been
done. What is left lies beyond something that has not been done, and the list says what that is.

Source: RocketMQ 5.3.3 ``ScheduleMessageService.load``, ``TimerMessageStore.recover``,
``TransactionalMessageServiceImpl.check``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from reput.overlay.base.debts import (
    Debts,
    find_debts,
    reach_and_end,
    read_timer_checkpoint,
    waiting_records,
)
from reput.overlay.base.halves import Halves, find_halves
from reput.overlay.records import properties as names
from reput.overlay.records.sources import source_of
from reput.overlay.records.transactions import DISCARDED_TOPIC, OP_TOPIC
from reput.readers.inventory import TRANSACTION_GROUP
from reput.readers.messagestore import MessageStore
from reput.store import configjson, fsops
from reput.store.brokerlock import BrokerLock, broker_pid
from reput.store.config import StoreSettings
from reput.store.datadirectories import check_target
from reput.store.errors import OwnershipError, StoreError, UsageError
from reput.store.files import (
    CONSUMER_OFFSET_FILE,
    DELAY_OFFSET_FILE,
    ROCKSDB_CONFIG_DIRECTORY,
    TIMER_CHECKPOINT_FILE,
)
from reput.store.log import java, properties, systemtopics
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.record import SCHEDULE_TOPIC, Record
from reput.store.state.consumeroffset import TopicGroup, document_with, read_committed

LIST_FILE = "delivered.json"
TEXT_FILE = "README.txt"
_NEXT_TIME = struct.Struct(">q")
_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class Done:
    """A message of the base that the overlay has delivered, or whose transaction it has ended."""

    kind: str
    """``level``, ``timer`` or ``transaction``."""
    outcome: str
    """``delivered``, ``committed``, ``rolled back`` or ``given up``."""
    topic: str
    """The topic of the message."""
    unique_key: str
    queue_id: int
    """The queue of the base in which it waited, of the topic for its kind."""
    queue_offset: int
    physical_offset: int
    """Its place in the base's log."""
    overlay_offset: int
    """The place in the overlay's log of what has become of it."""
    is_repeated: bool = False
    """Whether the broker does it once more with the files that are handed over."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The files of a handover, and all that has been done."""

    done: Sequence[Done]
    files: Mapping[str, bytes]
    """Contents by the name below the base's root."""


def hand_over(base: StoreSettings, output: Path, overlay: Path, directory: Path) -> Handover:
    """Write the files of a handover to ``directory``, which must be new or empty.

    ``overlay`` is the root of the output's overlay. Raises OwnershipError while the broker or a
    server runs, UsageError, StoreError.
    """
    if (pid := broker_pid(base.root)) is not None:
        raise OwnershipError(
            f"the broker of {base.root} runs, process {pid}, and has begun by its own notes: stop "
            "it first",
            path=base.root,
        )
    check_target(directory, base, output)
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; give another directory")
    if not overlay.is_dir():
        raise UsageError(f"{output} has no overlay: nothing was delivered beside its store")
    if (pid := broker_pid(overlay)) is not None:
        raise OwnershipError(
            f"process {pid} serves {overlay}, and delivers what waits there: stop that "
            "`reput serve --overlay` first",
            path=overlay,
        )
    with BrokerLock(overlay):
        handover = plan(base, output, overlay)
    _write(handover, base, directory)
    return handover


def plan(base: StoreSettings, output: Path, overlay: Path) -> Handover:
    """Return what is to be handed over, without writing. Raises UsageError, StoreError."""
    made = _made(overlay)
    debts, halves = find_debts(base, output), find_halves(base, output)
    with closing(base.open_log()) as log:
        waiting = list(waiting_records(log, debts.places))
        done: list[Done] = []
        files: dict[str, bytes] = {}
        for part, contents in (
            _levels(base, debts, waiting, made),
            _timers(base, waiting, made),
            _transactions(base, halves, log, made),
        ):
            done += part
            files |= contents
    return Handover(done, files)


_Part = tuple[list[Done], dict[str, bytes]]


def _made(overlay: Path) -> dict[int, Record]:
    """Return what an overlay has made of the base's records, by their physical offsets."""
    with MessageStore(overlay) as store:
        log = store.log.view.log
        _, end = reach_and_end(store)
        return {
            source.physical_offset: record
            for record in records(log, log.min_offset, end)
            if isinstance(record, Record)
            and (source := source_of(record)) is not None
            and source.is_base
        }


def _done(kind: str, waiting: Record, made: Record) -> Done:
    values = waiting.property_map
    outcome = "delivered" if kind != "transaction" else _outcome(made)
    return Done(
        kind, outcome, java.decode(values.get(names.REAL_TOPIC, b"")),
        java.decode(values.get(properties.UNIQ_KEY, b"")), waiting.queue_id, waiting.queue_offset,
        waiting.physical_offset, made.physical_offset,
    )  # fmt: skip


def _outcome(made: Record) -> str:
    return {OP_TOPIC: "rolled back", DISCARDED_TOPIC: "given up"}.get(made.topic, "committed")


def _levels(
    base: StoreSettings, debts: Debts, waiting: Sequence[Record], made: Mapping[int, Record]
) -> _Part:
    """A broker goes on at one queue offset of each level: the first that is not delivered."""
    next_offsets = dict(debts.level_ends)
    of_levels = [record for record in waiting if record.topic == SCHEDULE_TOPIC]
    for record in of_levels:
        if record.physical_offset not in made:
            level = record.queue_id + 1
            next_offsets[level] = min(next_offsets[level], record.queue_offset)
    done = [
        replace(
            _done("level", record, made[record.physical_offset]),
            is_repeated=record.queue_offset >= next_offsets[record.queue_id + 1],
        )
        for record in of_levels
        if record.physical_offset in made
    ]
    if not next_offsets:
        return done, {}
    return done, {DELAY_OFFSET_FILE: _delay_offsets(base.root, next_offsets)}


def _delay_offsets(root: Path, next_offsets: Mapping[int, int]) -> bytes:
    """``delayOffset.json`` as RocketMQ writes it, with numbers as unquoted keys."""
    try:
        document = configjson.read(root / DELAY_OFFSET_FILE)
    except StoreError:
        document = None
    version = document.get("dataVersion") if isinstance(document, dict) else None
    pairs = ",".join(f"{level}:{offset}" for level, offset in sorted(next_offsets.items()))
    first = "" if version is None else f'"dataVersion":{json.dumps(version)},'
    return f'{{{first}"offsetTable":{{{pairs}}}}}'.encode()


def _timers(base: StoreSettings, waiting: Sequence[Record], made: Mapping[int, Record]) -> _Part:
    """A broker's wheel goes on at one second: that of the first message that is not delivered, or
    the one after the last that is. A message that the wheel has not taken up yet is taken up when
    the broker starts, and delivered at once."""
    timed = [record for record in waiting if record.topic != SCHEDULE_TOPIC]
    done = [record for record in timed if record.physical_offset in made]
    noted = read_timer_checkpoint(base.root)
    enqueued = 0 if noted is None else noted.enqueued
    left = min((_time(r) for r in timed if r.physical_offset not in made), default=None)
    passed = {
        record.physical_offset: _time(record)
        for record in done
        if record.queue_offset < enqueued and (left is None or _time(record) < left)
    }
    entries = [
        replace(_done("timer", record, made[record.physical_offset]),
                is_repeated=record.physical_offset not in passed)
        for record in done
    ]  # fmt: skip
    if noted is None or not passed:
        return entries, {}
    next_time = max(noted.next_time, max(passed.values()) + _SECOND_MS)
    data = (base.root / TIMER_CHECKPOINT_FILE).read_bytes()
    return entries, {TIMER_CHECKPOINT_FILE: _NEXT_TIME.pack(next_time) + data[_NEXT_TIME.size :]}


def _time(record: Record) -> int:
    """TIMER_OUT_MS."""
    return java.parse_integer(record.property_map.get(names.TIMER_OUT_MS, b""), 64) or 0


def _transactions(
    base: StoreSettings, halves: Halves, log: CommitLog, made: Mapping[int, Record]
) -> _Part:
    """A broker goes over the halves from one queue offset on: that of the first whose transaction
    has no end."""
    ended, next_offset = [], halves.queue_end
    for transaction in halves.open:
        ends = [made[place[0]] for place in transaction.places if place[0] in made]
        if ends:
            ended.append((transaction.last, ends[0]))
        else:
            next_offset = min(next_offset, transaction.last.queue_offset)
    if not ended:
        return [], {}
    key = TopicGroup(systemtopics.HALF_TOPIC, TRANSACTION_GROUP)
    # such a broker reads no file
    is_in_rocksdb = (base.root / ROCKSDB_CONFIG_DIRECTORY).exists()
    done = [
        replace(_done("transaction", half, end),
                is_repeated=is_in_rocksdb or half.queue_offset >= next_offset)
        for place, end in ended
        for half in waiting_records(log, [place.physical_offset])
    ]  # fmt: skip
    before = (read_committed(base.root) or {}).get(key, {}).get(0, 0)
    if is_in_rocksdb or next_offset <= before:
        return done, {}
    return done, {CONSUMER_OFFSET_FILE: document_with(base.root, key, 0, next_offset)}


def _write(handover: Handover, base: StoreSettings, directory: Path) -> None:
    contents = {
        **handover.files,
        LIST_FILE: json.dumps([asdict(one) for one in handover.done], indent=1).encode() + b"\n",
        TEXT_FILE: "".join(f"{line}\n" for line in _text(handover, base)).encode(),
    }
    for name, data in contents.items():
        path = directory / name
        fsops.make_directories(path.parent, directory)
        fsops.replace_file(path, data)


def _text(handover: Handover, base: StoreSettings) -> Iterator[str]:
    """The lines for whoever starts the broker."""
    repeated = [one for one in handover.done if one.is_repeated]
    yield f"Handover of {base.root} to its broker."
    yield ""
    yield f"The overlay has delivered, or ended, {len(handover.done)} messages of this store;"
    yield f"{LIST_FILE} lists them. Before the broker starts:"
    yield ""
    yield "1. Stop `reput serve --overlay`, and do not start it on this store again."
    number = 2
    for name in handover.files:
        yield f"{number}. Copy {name} to {base.root / name}."
        number += 1
    yield f"{number}. Start the broker. It notes its own positions from then on."
    yield ""
    if not repeated:
        yield "With these files the broker repeats none of them."
    else:
        yield f"The broker repeats {len(repeated)} of them nevertheless, those with"
        yield '"is_repeated": true: a broker notes one position for each delay level, one for its'
        yield "timer wheel and one for all transactions, and these lie beyond a message that is not"
        yield "done yet, or that the wheel had not taken up when the broker stopped."
    yield ""
    yield "The overlay's own messages are in none of these files: retries and dead letters of"
    yield "consumers, and what was delivered and is not consumed yet, stay in the overlay."
