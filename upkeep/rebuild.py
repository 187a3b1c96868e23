"""Rebuilds everything derived from a log beside the existing files, compares both, and swaps it in.

Guarantee: no existing file changes until every part is built and durable; from then on every part
is replaced, if need be by the next start (``checkpoints.swap``). The old parts are kept.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import (
    build_root,
    check_swappable,
    clear_aside,
    drop_replaced,
    finish_owned_swap,
    finish_swap,
    swap_in,
)
from reput.checkpoints.watermark import WatermarkFile
from reput.store import fsops
from reput.store.config import OnQueueGap, StoreSettings
from reput.store.errors import NoSpaceError, NotReadyError, StoreError, UsageError
from reput.store.files import (
    ABORT_FILE,
    BUILD_RECORD_FILE,
    INDEX_DIRECTORY,
    LEDGER_FILE,
    QUEUE_DIRECTORIES,
    STATE_DIRECTORY,
    STORE_CHECKPOINT_FILE,
)
from reput.store.names import escaped
from reput.store.queue.consumequeue import topic_directory
from reput.store.queue.mappedfilequeue import used_end
from reput.store.queue.topics import check_topics
from reput.store.state.built import read_build_record, record_build, settings_of
from reput.store.state.ends import drop_ends
from reput.store.state.ledger import read_entries
from reput.store.state.movedpositions import MovedQueue, moved_queues
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from reput.streaming.spark.jvm import Jvm
from reput.upkeep.compare import DIRECTORY_KINDS, Comparison, compare_stores
from reput.upkeep.verify.positions import rewrite_watermark
from reput.upkeep.verify.seal import Seal, ledger_lines, note_unused, read_seal, write_seal

TOGETHER = {*QUEUE_DIRECTORIES}
"""Kinds that are rebuilt together: units hold the addresses of ext units, and a topic has queues of
one kind, so that existing queues of the other kind are moved out of the way."""
REPLACEABLE = (*DIRECTORY_KINDS, STORE_CHECKPOINT_FILE, STATE_DIRECTORY)
"""Parts of an output that a rebuild puts in place, in this order."""
COPIED_AT_ONCE = 1 << 20
"""Bytes."""
BLOCK_SIZE = 512
"""The unit of st_blocks, in bytes."""

logger = logging.getLogger("reput")

Builder = Callable[
    [DispatcherConfig, threading.Event, Callable[[Progress], None], Jvm | None], Progress
]
"""Builds a fresh output from a whole log."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    progress: Progress
    comparison: Comparison
    """Left: the old parts; right: the new parts."""
    kept: list[Path]
    """Paths of the parts that were replaced; empty for a dry run, and where there were none."""
    seal_end: int | None = None
    """The offset before which nothing was dispatched, but copied; None without a seal."""
    moved: tuple[MovedQueue, ...] = ()
    """Queues of what was built whose positions no longer equal queue offsets."""


def rebuild(
    config: DispatcherConfig,
    stop: threading.Event,
    show: Callable[[Progress], None] = lambda _: None,
    jvm: Jvm | None = None,
    *,
    build: Builder = run_dispatcher,
    kinds: Collection[str] = DIRECTORY_KINDS,
    topics: Collection[str] | None = None,
    dry_run: bool = False,
    sealed: bool = False,
) -> Rebuilt:
    """Build what follows from the log of ``config.store`` and swap it into ``config.output``.

    ``kinds`` are some of DIRECTORY_KINDS; those that the dispatcher does not write stay unchanged.
    ``topics`` limits the replacement to their queues. If every new part is put in place, so are the
    positions and RocketMQ's checkpoint; otherwise these stay, and the next run finds the new units
    built. ``build`` writes the new output: ``run_dispatcher``, or ``build_on_executors``; with
    ``sealed`` it is ``run_dispatcher`` and writes only what is new since the output was sealed, as
    long as the seal holds, and the rest is copied (``upkeep.verify.seal``). Raises ReputError, and
    OwnershipError where a broker or dispatcher runs.
    """
    output, (chosen, parts) = config.output, _chosen(config, kinds, topics)
    # a wrong call must not create a directory
    _, log = config.open_store()
    with closing(log):
        log.segments.check_mounted("nothing is replaced")
    finish_swap(output)
    settings, built_kinds = _settings(config, chosen if topics is None else [])
    with Ownership(output):
        finish_owned_swap(output)
        check_swappable(output, [*REPLACEABLE, *parts])
        _check_space(output)
        built = build_root(output)
        try:
            # the index, the slowest part, is not built where it would not be swapped in
            aside = replace(settings, message_index_enable=INDEX_DIRECTORY in built_kinds)
            seal = _copy_sealed(config, settings, aside, built) if sealed else None
            begin = None if seal is None else seal.end
            fsops.make_directories(built, output)
            record_build(built, aside)
            progress = build(_aside(config, built), stop, show, jvm)
            record_build(built, settings)
            if seal is not None:
                write_seal(built, seal)
            if stop.is_set():
                raise StoreError("stopped before everything was built: nothing was replaced")
            _take_over_checkpoint(output, built)
            new_kinds = {kind for kind in DIRECTORY_KINDS if (built / kind).is_dir()}
            _check_built(output, built, kinds, topics)
            written = [kind for kind in chosen if kind in new_kinds | TOGETHER]
            comparison = compare_stores(
                output, built, _comparable(output, settings, written), topics,
                settings.max_hash_slot_num,
            )  # fmt: skip
        except BaseException:
            clear_aside(output)
            raise
        moved = _moved(config, settings, built, topics)
        if dry_run:
            clear_aside(output)
            return Rebuilt(progress, comparison, [], begin, moved)
        parts = [part for part in parts if part.partition("/")[0] in written]
        # where an index that stays begins is in the watermark
        index_stays = settings.builds_index and INDEX_DIRECTORY not in parts
        parts += _positions(config, built, is_whole=new_kinds <= {*parts}, index_stays=index_stays)
        parts += _ledger(config, built, topics) if topics is not None else ()
        if STATE_DIRECTORY not in parts:
            drop_ends(config.state_directory)  # new parts may end elsewhere
        return Rebuilt(progress, comparison, swap_in(output, parts), begin, moved)


def _positions(
    config: DispatcherConfig, built: Path, *, is_whole: bool, index_stays: bool
) -> Sequence[str]:
    """Return which positions are swapped in too: all of them where everything that was built is
    (``is_whole``); where they stay, note in them what must follow the new index."""
    is_ours = read_watermark(config.state_directory) is not None
    if is_whole and not (is_ours and index_stays):
        return STORE_CHECKPOINT_FILE, STATE_DIRECTORY
    if not index_stays and (built / INDEX_DIRECTORY).is_dir():
        _note_index(config, built)
    if is_ours and read_build_record(built) != read_build_record(config.output):
        return (f"{STATE_DIRECTORY}/{BUILD_RECORD_FILE}",)
    return ()


def _moved(
    config: DispatcherConfig, settings: StoreSettings, built: Path, topics: Collection[str] | None
) -> tuple[MovedQueue, ...]:
    """Return the queues of ``topics``, or of all, in which gaps were closed up."""
    if settings.on_queue_gap is OnQueueGap.BLANK:
        return ()
    names = None if topics is None else {escaped(topic.encode()) for topic in topics}
    queues = moved_queues(read_entries(built / STATE_DIRECTORY), (config.store, config.output))
    return tuple(queue for queue in queues if names is None or queue.topic in names)


def _ledger(config: DispatcherConfig, built: Path, topics: Collection[str]) -> Sequence[str]:
    """Return the ledger if it changes: its lines of the topics give way to those of the build."""
    watermark = read_watermark(config.state_directory)
    if watermark is None:
        return ()
    names = {escaped(topic.encode()) for topic in topics}
    before = list(read_entries(config.state_directory))
    new = [
        entry
        for entry in read_entries(built / STATE_DIRECTORY)
        if entry is not None
        and entry.topic in names
        and entry.end_physical_offset <= watermark.end_offset
    ]
    if None in before or {e for e in before if e is not None and e.topic in names} == {*new}:
        # a damaged line stays as evidence, with all others
        return ()
    kept = [entry for entry in before if entry is not None and entry.topic not in names]
    lines = "".join(entry.to_json() + "\n" for entry in [*kept, *new])
    fsops.replace_file(built / STATE_DIRECTORY / LEDGER_FILE, lines.encode())
    return (f"{STATE_DIRECTORY}/{LEDGER_FILE}",)


def _copy_sealed(
    config: DispatcherConfig, settings: StoreSettings, aside: StoreSettings, built: Path
) -> Seal | None:
    """Copy what is sealed, and return the seal; None where it does not hold, and nothing is left.

    ``aside`` are the settings of the build. It is left as by a killed run: the next start there
    makes the copies durable, clears what lies beyond the seal, and goes on.
    """
    output, watermark = config.output, read_watermark(config.state_directory)
    if watermark is None:
        note_unused("there is no watermark")
        return None
    has_index = aside.builds_index
    with closing(settings.open_log()) as log:
        log_start = log.min_offset
        seal = read_seal(output, settings, log, watermark.end_offset)
    if seal is None:
        return None
    if has_index and not 0 <= watermark.index_begin <= log_start:
        note_unused(f"the index begins at {watermark.index_begin}")
        return None
    fsops.make_directories(built, output)
    record_build(built, aside)
    copied = seal if has_index else seal.without(INDEX_DIRECTORY)
    try:
        for path in dict.fromkeys(part.path for part in copied.parts):
            # those that the log no longer needs may be gone
            if (output / path).exists():
                _copy(output, built, path, settings.file_size(path.partition("/")[0]))
        fault = copied.changed(built, log_start)
    except OSError as error:
        # of the original: those of the copy are OutputErrors
        fault = str(error)
    if fault is not None:
        note_unused(fault)
        clear_aside(output)
        return None
    state = built / STATE_DIRECTORY
    fsops.make_directories(state, output)
    fsops.replace_file(state / LEDGER_FILE, ledger_lines(output, seal.end))
    fsops.replace_file(state / ABORT_FILE, b"")
    index_begin = watermark.index_begin if has_index else -1
    rewrite_watermark(state, replace(watermark.moved_to(seal.end), index_begin=index_begin))
    logger.info("copied what is sealed: log_end=%d log_files=%d", seal.end, len(seal.log))
    return seal


def _copy(source: Path, target: Path, path: str, size: int) -> None:
    """Copy a file below ``source`` as one of ``size`` bytes, without the zeros at its end. Raises
    OSError where it cannot be read, OutputError."""
    fsops.create_directories((target / path).parent, target.parent)
    with (source / path).open("rb", buffering=0) as file:
        copy = fsops.open_for_writing(target / path, size)
        try:
            end = min(used_end(file.fileno()), size)
            for at in range(0, end, COPIED_AT_ONCE):
                data = os.pread(file.fileno(), min(COPIED_AT_ONCE, end - at), at)
                fsops.pwrite(copy, data, at, target / path)
        finally:
            os.close(copy)


def drop_old(output: Path) -> list[Path]:
    """Remove the parts that rebuilds have replaced and kept; return their paths. Raises
    ReputError."""
    if not output.is_dir():
        line = f"there is no directory {output}; give the output that was rebuilt"
        raise NotReadyError(line, path=output)
    with Ownership(output):
        finish_owned_swap(output)
        return drop_replaced(output, REPLACEABLE)


def _chosen(
    config: DispatcherConfig, kinds: Collection[str], topics: Collection[str] | None
) -> tuple[list[str], list[str]]:
    """Return the kinds in order, and the parts of an output that they and the topics select. Raises
    UsageError for a topic that is unknown or has no directory."""
    all_kinds = {*kinds, *(TOGETHER if TOGETHER & {*kinds} else ())}
    chosen = [kind for kind in DIRECTORY_KINDS if kind in all_kinds]
    if topics is None:
        return chosen, list(chosen)
    for topic in topics:
        if topic_directory(topic.encode("utf-8", "surrogateescape")) != topic:
            raise UsageError(f"`topics=` is {topic!r}, which has no queues: it is not a plain name")
    check_topics(topics, config.store, config.output)
    return chosen, [f"{kind}/{topic}" for kind in chosen for topic in topics]


def _settings(
    config: DispatcherConfig, replaced: Sequence[str]
) -> tuple[StoreSettings, Sequence[str]]:
    """Return the settings for the output, and the parts among ``replaced`` that are built. Raises
    UsageError where a changed setting decides the content of a part that would stay unchanged."""
    given = config.given_settings()
    settings = settings_of(config.output, given, config.flags, replaced)
    if not settings.builds_index:
        replaced = [kind for kind in replaced if kind != INDEX_DIRECTORY]
        settings = settings_of(config.output, given, config.flags, replaced)
    return settings, replaced


def _aside(config: DispatcherConfig, built: Path) -> DispatcherConfig:
    # the identity stays, because followers use it to find their positions; the settings are
    # recorded in the new state directory
    watermark = read_watermark(config.state_directory)
    return replace(
        config, output=built, once=True, checkpoint=None, adopt=False, replay_from=None,
        store_id=watermark.store_id if watermark else None, followers=(), flags={},
    )  # fmt: skip


def _take_over_checkpoint(output: Path, built: Path) -> None:
    """Copy from the old checkpoint only what the new one cannot know: the other times of the old
    one may be of messages that the log has lost since."""
    before, after = StoreCheckpoint.read(output), StoreCheckpoint.read(built)
    if before is None or after is None:
        return
    after = replace(after, master_flushed_offset=before.master_flushed_offset)
    if before.logics_physical_offset > 0 and not after.logics_physical_offset:
        after = replace(after, logics_physical_offset=after.confirm_phy_offset)
    if not (built / INDEX_DIRECTORY).is_dir():
        # the index stays
        after = replace(after, index_msg_timestamp=before.index_msg_timestamp)
    after.write(built)


def _comparable(output: Path, settings: StoreSettings, kinds: Sequence[str]) -> Sequence[str]:
    """Return those of ``kinds`` that can be compared: index files with another number of slots have
    their entries elsewhere."""
    record = read_build_record(output)
    slots = settings.max_hash_slot_num
    if record is not None and record.settings.get("max_hash_slot_num", slots) != slots:
        return [kind for kind in kinds if kind != INDEX_DIRECTORY]
    return kinds


def _note_index(config: DispatcherConfig, built: Path) -> None:
    """Record in the remaining watermark where the new index begins, and in RocketMQ's checkpoint
    the time of its full files.

    This comes before the swap: after a kill between the two, ``verify`` finds missing keys,
    correctly.
    """
    current, begun = read_watermark(config.state_directory), read_watermark(built / STATE_DIRECTORY)
    if current is not None and begun is not None:
        watermark = WatermarkFile(config.state_directory)
        try:
            watermark.advance(replace(current, index_begin=begun.index_begin))
        finally:
            watermark.close()
    before, after = StoreCheckpoint.read(config.output), StoreCheckpoint.read(built)
    if before is not None and after is not None:
        replace(before, index_msg_timestamp=after.index_msg_timestamp).write(config.output)


def _check_built(
    output: Path, built: Path, kinds: Iterable[str], topics: Collection[str] | None
) -> None:
    """Raises UsageError where none of the requested parts was built."""
    roots = [root / kind for root in (output, built) for kind in kinds]
    if not any((built / kind).is_dir() for kind in kinds):
        raise UsageError("the log has no message for the requested parts: nothing was replaced")
    for topic in topics or ():
        if not any((root / topic).is_dir() for root in roots):
            raise UsageError(f"there is no queue of topic {topic!r}: nothing was replaced")


def _check_space(output: Path) -> None:
    """Check for free space; the new parts take about as much as the old ones, if those are
    whole."""
    needed = sum(
        os.lstat(Path(directory) / name).st_blocks * BLOCK_SIZE
        for kind in DIRECTORY_KINDS
        for directory, _, names in os.walk(output / kind)
        for name in names
    )
    system = os.statvfs(output)
    free = system.f_bavail * system.f_frsize
    if needed > free:
        raise NoSpaceError(
            f"a rebuild of {output} needs about {needed} bytes besides the old files, {free} are "
            "free; make room, or build into another output with `output=DIR`",
            path=output,
        )
