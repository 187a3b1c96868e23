"""Looks at a store and an output for everything that is wrong, and names one command for each find.

It reads only. Finds are in the order in which they are to be healed: what an earlier one heals may
take a later one away. A whole comparison with the log is ``reput verify``'s, which takes as long
as to read the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from reput.checkpoints.agreement import BuiltOutput, what_differs
from reput.checkpoints.presence import find_loss
from reput.store.brokerlock import broker_pid
from reput.store.commandline import command_line
from reput.store.config import OnQueueGap, StoreSettings
from reput.store.errors import ReputError
from reput.store.files import ASIDE_DIRECTORY, STATE_DIRECTORY, SWAP_JOURNAL_FILE, WATERMARK_FILE
from reput.store.log.logtail import LogTail
from reput.store.state.consumeroffset import read_committed_of
from reput.store.state.ledger import QUEUE_OFFSET_GAP, QUEUE_OFFSET_SEEN_BEFORE, read_entries
from reput.store.state.movedpositions import moved_queues
from reput.store.state.watermark import read_watermark
from reput.upkeep.watch.status import OutputStatus, read_status

_HIDING = ("killed_rebuild", "watermark_damaged", "log_cut")
"""States in which the rest cannot be told."""
HISTORY = "quarantined"
"""The state of damage that a run has passed, which stays listed."""
SHOWN_PLACES = 5
"""Places that one find names."""


@dataclass(frozen=True, slots=True)
class Find:
    """One thing that is wrong."""

    state: str
    """A word for programs."""
    text: str
    """The state and its place, for people."""
    command: str | None
    """The command that heals it; None where none of ours can."""

    @property
    def is_wrong(self) -> bool:
        """Whether something is to be done."""
        return self.state != HISTORY


class Doctor:
    """One examination."""

    def __init__(self, settings: StoreSettings, output: Path) -> None:
        self._settings = settings
        self._output = output

    def finds(self) -> Iterator[Find]:
        """Yield everything that is wrong, in the order of healing."""
        if not self._output.is_dir():
            text = f"there is no {self._output} yet"
            yield Find("no_queues", text, self._command("run", "--once"))
            return
        looks: tuple[Callable[[], Iterable[Find]], ...] = (
            self._swap, self._log, self._watermark, self._entries, self._queues,
        )  # fmt: skip
        for look in looks:
            try:
                finds = list(look())
            except (ReputError, OSError) as error:
                # whatever cannot be read hides the rest
                yield Find("unreadable", str(error), None)
                return
            yield from finds
            if any(find.state in _HIDING for find in finds):
                return

    def _command(self, verb: str, *options: object) -> str:
        return command_line(verb, self._settings.root, self._output, *map(str, options))

    def _swap(self) -> Iterator[Find]:
        aside = self._output / ASIDE_DIRECTORY
        if broker_pid(self._output) is not None or not aside.is_dir():
            return
        if (aside / SWAP_JOURNAL_FILE).exists():
            text = f"a rebuild of {self._output} was killed while it replaced files"
            yield Find("killed_rebuild", text, self._command("run", "--once"))
        else:
            text = f"a rebuild of {self._output} was killed before it replaced anything"
            yield Find("killed_build", text, self._command("rebuild"))

    def _log(self) -> Iterator[Find]:
        with closing(self._settings.open_log()) as log:
            gaps = [f"[{start}, {end})" for start, end in log.segments.gaps()]
        if gaps:
            yield Find(
                "log_files_missing",
                f"files of the log are missing: {_some(gaps)}; bring them back from a copy or a "
                "replica, their messages cannot be read",
                None,
            )

    def _watermark(self) -> Iterator[Find]:
        state = self._output / STATE_DIRECTORY
        watermark = read_watermark(state)
        if watermark is None:
            if (state / WATERMARK_FILE).exists():
                text = f"{state / WATERMARK_FILE} is damaged, both slots of it"
                yield Find("watermark_damaged", text, self._command("verify", "--repair"))
            return
        with closing(self._settings.open_log()) as log:
            differs = what_differs(log, LogTail(log).settled(), watermark)
            end = watermark.end_offset
            if end < log.min_offset:
                differs = f"the log begins at {log.min_offset}, beyond the watermark {end}"
        if differs is not None:
            yield Find("log_cut", differs, self._command("run", "--once"))

    def _entries(self) -> Iterator[Find]:
        watermark = read_watermark(self._output / STATE_DIRECTORY)
        if watermark is None:
            return
        with closing(self._settings.open_log()) as log:
            loss = find_loss(log, watermark, BuiltOutput(self._output, self._settings))
        if loss is not None:
            verb = "run" if loss.is_everything else "rebuild"
            names = [f"{name.name}/{name.queue_id}" for name in loss.names]
            text = (
                f"{len(loss.names)} of {loss.total} queues and index files lack entries that were "
                f"built: {_some(names)}"
            )
            yield Find("entries_missing", text, loss.command(self._settings, verb))

    def _queues(self) -> Iterator[Find]:
        status = read_status(self._settings, self._output)
        if status.queues_beyond_log and status.writer_pid is None:
            yield Find(
                "units_beyond_log",
                f"queues have units beyond the log's end: {_some(status.queues_beyond_log)}",
                self._command("run", "--adopt", "--once"),
            )
        elif status.unqueued is not None and not status.coverage.is_growing:
            command = status.coverage.command(self._settings.root, self._output)
            text = status.unqueued.removesuffix(f": {command}")
            yield Find("messages_in_no_queue", text, command)
        if status.unstopped_run is not None:
            yield Find("run_ended", status.unstopped_run, self._command("run", "--once"))
        for queue in status.repeated:
            text = (
                f"{queue.messages} messages of topic {queue.topic} queue {queue.queue_id}, from "
                f"physical offset {queue.first_physical_offset} on, are in no queue, because their "
                "offsets begin again; if the topic was made again and consumers shall see them, "
                "rebuild it"
            )
            choice = ("--topic", queue.topic, "--from", queue.begin)
            yield Find("offsets_begin_again", text, self._command("rebuild", *choice))
        yield from self._damage()
        yield from self._moved()
        yield from self._beyond(status)

    def _damage(self) -> Iterator[Find]:
        quiet = (QUEUE_OFFSET_GAP, QUEUE_OFFSET_SEEN_BEFORE)
        places = [
            f"{entry.physical_offset} ({entry.reason})"
            for entry in read_entries(self._output / STATE_DIRECTORY)
            if entry is not None and entry.reason not in quiet
        ]
        if places:
            text = f"the ledger lists {len(places)} ranges of the log without an entry: "
            text += f"{_some(places)}; reput inspect record shows each, and they stay listed"
            yield Find(HISTORY, text, None)

    def _moved(self) -> Iterator[Find]:
        if self._settings.on_queue_gap is OnQueueGap.BLANK:
            return
        roots = (self._settings.root, self._output)
        for queue in moved_queues(read_entries(self._output / STATE_DIRECTORY), roots):
            if queue.groups:
                command = self._command("rebuild", "--on-queue-gap", OnQueueGap.BLANK.value)
                yield Find("positions_moved", queue.line, command)

    def _beyond(self, status: OutputStatus) -> Iterator[Find]:
        ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in status.queues}
        committed = read_committed_of(self._output, self._settings.root)
        for key, queues in sorted(committed.items()):
            beyond = self._queues_beyond(key.topic, queues, ends)
            if beyond:
                text = (
                    f"group {key.group} has committed beyond the end of queues {_some(beyond)} of "
                    f"topic {key.topic}, and gets nothing there until they have grown so far"
                )
                words = (key.group, "--topic", key.topic, "--earliest", "--apply")
                yield Find("offsets_beyond_queues", text, self._command("groups reset", *words))

    @staticmethod
    def _queues_beyond(
        topic: str, committed: Mapping[int, int], ends: Mapping[tuple[str, int], int]
    ) -> list[str]:
        pairs = ((queue, ends.get((topic, queue))) for queue in committed)
        return [str(queue) for queue, end in pairs if end is not None and committed[queue] > end]


def examine(settings: StoreSettings, output: Path) -> list[Find]:
    """Return all that is wrong with a store's output, in the order in which to heal it.

    A broker's own store has no watermark; there, its queues are compared with the log.
    """
    return list(Doctor(settings, output).finds())


def _some(places: Iterable[str]) -> str:
    listed = list(places)
    more = len(listed) - SHOWN_PLACES
    return ", ".join(listed[:SHOWN_PLACES]) + (f" and {more} more" if more > 0 else "")
