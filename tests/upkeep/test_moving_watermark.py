"""Commands that read an output's positions while a run moves them: none takes that for a cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reput.checkpoints.rewind import Target
from reput.store.config import StoreSettings, read_store_settings
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.state.output import end_of_output
from reput.upkeep.checkpoints import check, read_positions, rewind, spark_directory_of
from reput.upkeep.doctor import Doctor
from reput.upkeep.expiry import expire
from reput.upkeep.verify.run import verify
from reput.upkeep.watch.outputs import OutputWatch
from reput.upkeep.watch.status import read_status
from tests.support.live_store import LiveStore


def _of_status(settings: StoreSettings, output: Path) -> object:
    status = read_status(settings, output)
    return status.watermark, status.log_end, status.lag_bytes


def _of_watch(settings: StoreSettings, output: Path) -> object:
    with OutputWatch(settings, output, spark_directory_of(output, None)) as watch:
        reading = watch.read()
    return reading.watermark, reading.log_end, reading.lag.bytes, reading.differs


def _of_positions(settings: StoreSettings, output: Path) -> object:
    positions = read_positions(settings, output, None)
    return positions.watermark, positions.log_end


def _of_rewind(settings: StoreSettings, output: Path) -> object:
    rewound = rewind(settings, output, None, Target(offset=0), apply=False)
    return rewound.rewind.watermark, rewound.rewind.messages


READS: dict[str, Callable[[StoreSettings, Path], object]] = {
    "status": _of_status,
    "top": _of_watch,
    "checkpoints list": _of_positions,
    "checkpoints rewind": _of_rewind,
    "checkpoints check": lambda settings, output: check(settings, output, None).problems,
    "doctor": lambda settings, output: list(Doctor(settings, output).finds()),
    "expire": lambda settings, output: expire(settings, output, apply=False).files,
    "verify": verify,
}


@pytest.mark.parametrize("name", READS)
def test_messages_that_come_after_a_look_at_the_log_change_nothing(
    live: LiveStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They are appended and dispatched between that look and whatever the command reads next: it
    answers as it does at rest, before they came."""
    settings, settled, looks = read_store_settings(live.root), LogTail.settled, list[int]()
    at_rest = READS[name](settings, live.output)

    def overtaken(tail: LogTail, start: int = 0, *, patient: bool = False) -> int:
        looks.append(settled(tail, start, patient=patient))
        if len(looks) == 1:
            live.append_tags(b"E")
            live.dispatch()
        return looks[-1]

    monkeypatch.setattr(LogTail, "settled", overtaken)
    assert READS[name](settings, live.output) == at_rest
    assert looks


def test_a_log_that_grows_by_a_file_after_a_look_at_it_is_the_same_log(
    live: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message before a watermark is looked for in the log as it was after that."""
    log, refresh, looks = read_store_settings(live.root).open_log(), CommitLog.refresh, [0]
    before = end_of_output(live.output, live.root, log)

    def overtaken(of: CommitLog) -> None:
        refresh(of)
        looks[0] += 1
        if looks[0] == 1:
            live.append([Record(topic=b"T", body=bytes(1 << 15))] * 3)
            live.dispatch()

    monkeypatch.setattr(CommitLog, "refresh", overtaken)
    assert before is not None
    assert end_of_output(live.output, live.root, log) == before
    assert end_of_output(live.output, live.root, log) != before
