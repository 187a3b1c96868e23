"""Messages that are in no queue, against stores whose bytes the test made, and those of brokers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.brokerlock import BrokerLock
from reput.store.config import read_store_settings
from reput.store.log.logtail import LogTail
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind
from reput.store.queue.view import open_view
from reput.store.state import coverage
from reput.store.state.coverage import Coverage, Messages, holds_more, read_coverage
from tests.support import wire
from tests.support.broker_store import BrokerStore, four_queues
from tests.support.processes import holder

NOTHING = Messages()


def coverage_of(root: Path, watermark: int | None = None) -> Coverage:
    settings = read_store_settings(root)
    with closing(settings.open_log()) as log:
        return read_coverage(root, settings, log, watermark, LogTail(log).settled())


def all_queues(made: BrokerStore) -> list[tuple[str, int]]:
    return [key for key in made.queues if key[0] != "Idle"]


@pytest.mark.parametrize(
    "name", ["batch", "broker", "ext", "killed", "lmq", "mixed", "plain", "wide", "orders-5.5.1"]
)
def test_nothing_is_missing_in_a_brokers_own_store(
    golden: Callable[[str], Path], name: str
) -> None:
    """With batch queues, light queues, inner batches, transactions and a killed broker's end."""
    store = golden(name)
    found = coverage_of(store)
    assert (found.pending, found.missing, found.line(store, store)) == (NOTHING, NOTHING, None)
    assert not found.is_loss


def test_records_without_a_queue_do_not_count(tmp_path: Path) -> None:
    """Half and rolled-back messages after the last unit, and a BLANK."""
    found = coverage_of(four_queues(tmp_path).write())
    assert (found.pending, found.missing) == (NOTHING, NOTHING)


def test_places_that_no_queue_has_do_not_count(tmp_path: Path) -> None:
    """The ledger lists such messages; what they are to be in besides counts."""
    made = four_queues(tmp_path)
    made.log.append(topic=b"a/b")
    made.log.append(topic=b"New", queue_id=-1)
    made.log.append(topic=b"New", queue_offset=-1)
    made.write()
    assert coverage_of(tmp_path).bytes == 0
    with (tmp_path / "broker.conf").open("a") as conf:
        conf.write("enableMultiDispatch=true\nenableLmq=true\n")
    light = b"INNER_MULTI_DISPATCH\x01%LMQ%x\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    made.log.append(topic=b"a/b", properties=light)
    made.log.write(tmp_path / "commitlog")
    assert coverage_of(tmp_path).pending.messages == 1


def test_zeroed_ends_of_all_queues_are_pending(tmp_path: Path) -> None:
    """The messages after the last one with a unit; the command says how to go on with a broker's
    queues, and how to begin where there is none."""
    made = four_queues(tmp_path)
    made.write()
    lost = sum(made.zero_last(*key, 20) for key in all_queues(made))
    found = coverage_of(tmp_path)
    first = min(made.queues[key][-20][0] for key in all_queues(made))
    assert found.pending == Messages(lost, 80, first)
    assert (found.missing, found.is_loss) == (NOTHING, True)
    assert found.line(tmp_path, tmp_path) == (
        f"{lost:,} bytes of the log are in no queue, from physical offset {first} on: "
        f"reput run {tmp_path} --adopt --once"
    )
    shutil.rmtree(tmp_path / "consumequeue")
    found = coverage_of(tmp_path)
    every = sum(end - start for spans in made.queues.values() for start, end in spans)
    assert found.pending == Messages(every, 243, 0)
    assert found.is_loss
    assert found.command(tmp_path, tmp_path) == f"reput run {tmp_path} --once"
    assert found.command(tmp_path, tmp_path / "o") == (
        f"reput run {tmp_path} --output {tmp_path / 'o'} --once"
    )


def test_a_queue_that_alone_lost_its_end_is_missing_its_messages(tmp_path: Path, seed: int) -> None:
    """Though others reach the log's end, and also where only some of them do."""
    rng = random.Random(seed)
    made = four_queues(tmp_path)
    made.write()
    keys = rng.sample(all_queues(made), rng.randint(1, 3))
    lost = sum(made.zero_last(*key, rng.randint(2, 60)) for key in keys)
    found = coverage_of(tmp_path)
    assert found.bytes == lost
    assert found.missing.bytes
    assert found.is_loss


def test_a_queue_of_a_broker_that_lost_its_end_is_taken_over(tmp_path: Path) -> None:
    """No watermark says that the message was dispatched, so a run brings it into its queue."""
    made = four_queues(tmp_path)
    made.write()
    lost = made.zero_last("Orders", 1, 1)
    first = made.queues["Orders", 1][-1][0]
    found = coverage_of(tmp_path)
    assert found.missing == Messages(lost, 1, first)
    assert found.line(tmp_path, tmp_path) == (
        f"{lost:,} bytes of the log are in no queue, from physical offset {first} on, and other "
        f"queues reach beyond them: reput run {tmp_path} --adopt --once"
    )


def test_a_watermark_beyond_the_log_is_no_lag(tmp_path: Path) -> None:
    """As where the log was cut: the queues reach to the log's end, and lack nothing of it."""
    made = four_queues(tmp_path)
    made.write()
    found = coverage_of(tmp_path, made.log.end + 1000)
    assert found.reach == found.log_end == made.log.end
    assert (found.pending, found.missing, found.is_loss) == (NOTHING, NOTHING, False)


def test_a_missing_queue_counts_from_its_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the bytes that are looked at count; beyond a limit the line says so."""
    made = four_queues(tmp_path)
    made.write()
    shutil.rmtree(tmp_path / "consumequeue" / "Orders" / "1")
    monkeypatch.setattr(coverage, "LOOKED_AT", 2000)
    found = coverage_of(tmp_path)
    spans = made.queues["Orders", 1]
    assert found.missing == Messages(sum(end - start for start, end in spans), 60, spans[0][0])
    monkeypatch.setattr(coverage, "MAX_COUNTED", 3000)
    found = coverage_of(tmp_path)
    assert found.missing.messages is None
    assert (found.line(tmp_path, tmp_path) or "").startswith("at least ")


def test_of_much_that_is_pending_the_first_part_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any queue: from the first message on, and all bytes after the part that is read."""
    made = four_queues(tmp_path)
    made.write()
    shutil.rmtree(tmp_path / "consumequeue")
    counted = 3000
    monkeypatch.setattr(coverage, "MAX_COUNTED", counted)
    read = max(end for start, end in made.log.spans if start < counted)
    spans = [span for spans in made.queues.values() for span in spans if span[0] < counted]
    size = sum(end - start for start, end in spans)
    assert coverage_of(tmp_path).pending == Messages(size + made.log.end - read, None, 0)


@pytest.mark.parametrize("verify_crc", [True, False])
def test_a_body_that_changed_counts_where_its_crc_does_not(
    tmp_path: Path, *, verify_crc: bool
) -> None:
    """A run that verifies bodies lists such a message, and gives it no unit."""
    made = four_queues(tmp_path)
    at = made.log.append(topic=b"New", body=b"body")
    made.log.append(topic=b"a/b")
    made.write()
    data = made.log.bytes_at(made.log.spans[-2])
    made.log.put(at + data.index(b"body"), b"Body")
    made.log.write(tmp_path / "commitlog")
    settings = replace(read_store_settings(tmp_path), verify_crc=verify_crc)
    with closing(settings.open_log()) as log:
        found = read_coverage(tmp_path, settings, log, None, LogTail(log).settled())
    assert found.pending.messages == (0 if verify_crc else 1)


def test_a_unit_after_a_queues_end_is_told_from_none(tmp_path: Path) -> None:
    """Where the log ends before its message; blanks, and zeros that were never written, are no
    units."""
    made = four_queues(tmp_path)
    made.write()
    settings = read_store_settings(tmp_path)
    spans = made.queues["Orders", 1]
    with closing(settings.open_log()) as log:
        queue = open_view(tmp_path, QueueKey("Orders", 1), settings, log, QueueKind.CONSUME)
        for end in (spans[-1][1], spans[-1][1] - 1, spans[-2][1], spans[0][1], spans[0][1] - 1):
            queue.follow(end)
            assert holds_more(queue) == (end < spans[-1][1]), end
        assert made.zero_last("Orders", 1, 1)
        queue.follow(spans[-2][1])
        assert not holds_more(queue)
        path = max(queue.files.directory.iterdir())
        data = path.read_bytes()
        at = queue.end_unit * wire.UNIT.size - int(path.name)
        path.write_bytes(data[:at] + wire.PRE_BLANK + data[at + wire.UNIT.size :])
        assert not holds_more(queue)


def test_below_a_watermark_every_message_has_a_unit(tmp_path: Path) -> None:
    """Bytes beyond the watermark are lag; a unit that is missing below it is a loss, and only a
    rebuild brings it back."""
    made = four_queues(tmp_path)
    made.write()
    end = made.log.spans[-3][1]
    lag = made.log.end - end
    found = coverage_of(tmp_path, end)
    assert (found.pending, found.missing) == (Messages(lag, None, end), NOTHING)
    assert (found.is_loss, found.reach) == (False, end)
    assert found.command(tmp_path, tmp_path) == f"reput run {tmp_path} --once"
    lost = made.zero_last("Payments", 1, 5)
    found = coverage_of(tmp_path, end)
    assert found.missing == Messages(lost, 5, made.queues["Payments", 1][-5][0])
    assert found.is_loss
    assert found.command(tmp_path, tmp_path) == f"reput rebuild {tmp_path}"


def test_a_message_whose_place_is_taken_is_not_missing(tmp_path: Path) -> None:
    """RocketMQ drops it: no run would bring it into a queue. One at offset 0 is appended."""
    made = four_queues(tmp_path)
    made.write()
    made.log.append(topic=b"Orders", queue_offset=7)
    made.log.write(tmp_path / "commitlog")
    assert coverage_of(tmp_path).bytes == 0
    made.log.append(topic=b"Orders", queue_offset=0)
    made.log.write(tmp_path / "commitlog")
    assert coverage_of(tmp_path).pending.messages == 1


def test_what_a_running_broker_has_not_built_yet_is_lag(tmp_path: Path) -> None:
    """While it holds its lock, or by its abort file on another machine; not without any queue."""
    made = four_queues(tmp_path)
    made.write()
    for key in all_queues(made):
        made.zero_last(*key, 1)
    assert coverage_of(tmp_path).is_loss
    (tmp_path / "abort").touch()
    assert not coverage_of(tmp_path).is_loss
    (tmp_path / "abort").unlink()
    with holder(BrokerLock(tmp_path).__enter__) as pid:
        found = coverage_of(tmp_path)
        assert (found.is_loss, found.is_growing) == (False, True)
        assert f"process {pid} is building the queues" in (found.line(tmp_path, tmp_path) or "")
    (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue")
    assert coverage_of(tmp_path).is_loss


def test_a_record_inside_a_body_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the look begins inside such a body, it would be a message of a queue that is none."""
    made = four_queues(tmp_path)
    inner = b""
    position = made.log.end + 91
    for _ in range(40):
        inner += wire.message(position + len(inner), topic=b"Forged")
    made.put("Orders", 0, body=inner[: 60 * 40])
    made.put("Orders", 1)
    made.write()
    for looked_at in range(200, 3000, 61):
        monkeypatch.setattr(coverage, "LOOKED_AT", looked_at)
        for counted in (looked_at + 3000, 16 << 20):
            monkeypatch.setattr(coverage, "MAX_COUNTED", counted)
            assert coverage_of(tmp_path).bytes == 0
