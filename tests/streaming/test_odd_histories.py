"""Short histories of a log after which an output was once wrong, as ``dispatchermachine`` has found
them. The oracle is ``small_store``'s."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.errors import CommitLogError, StoreError
from reput.store.files import WATERMARK_FILE
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog

FILE_SIZE = 2048
HOUR_MS = 3_600_000


def log_of(bodies: list[int], *, queue_id: int = 0) -> PlainLog:
    """Messages with a key each; the first one is of ``queue_id``."""
    plain = PlainLog(FILE_SIZE)
    for number, size in enumerate(bodies):
        append(plain, number, size, queue_id if number == 0 else 0)
    return plain


def append(plain: PlainLog, number: int, size: int, queue_id: int = 0) -> None:
    plain.append(
        body=bytes(size), queue_id=queue_id, queue_offset=number,
        properties=b"UNIQ_KEY\x01k%d\x02" % number,
        store_timestamp=1_700_000_000_000 + 1234 * number,
    )  # fmt: skip


def begin(store: SmallStore) -> None:
    """Take the output over, and dispatch nothing."""
    with running(DispatcherConfig(store.output.store, store.output.root, once=True)):
        pass


def retire(store: SmallStore) -> None:
    """Remove the log's first file."""
    min((store.output.store / "commitlog").iterdir()).unlink()


def grown(store: SmallStore, number: int, *sizes: int) -> None:
    """Append further messages."""
    for at, size in enumerate(sizes, number):
        append(store.plain, at, size)
    store.plain.write(store.output.store / "commitlog")


@pytest.mark.parametrize("is_running", [False, True])
def test_a_record_takes_the_place_of_a_blank(tmp_path: Path, is_running: bool) -> None:
    """The watermark was beyond the BLANK, the broker lost it, and the last record is the same."""
    plain = log_of([500, 500, 300, 1000])
    plain.cut(FILE_SIZE)
    store = SmallStore(tmp_path, plain)
    store.output.start()
    assert store.end == FILE_SIZE
    if is_running:
        config = DispatcherConfig(store.output.store, store.output.root, once=True)
        with pytest.raises(Exception, match="start it again"), running(config) as run:
            plain.cut(plain.spans[-1][1])
            grown(store, 3, 10, 1000)
            run.committer.tend()
    else:
        plain.cut(plain.spans[-1][1])
        grown(store, 3, 10, 1000)
    store.output.start()
    store.check()


def test_no_unit_of_an_ended_batch_stays_in_a_lost_range(tmp_path: Path) -> None:
    """Retention takes messages whose units a killed run had written beyond the watermark."""
    store = SmallStore(tmp_path, log_of([100]))
    begin(store)
    path = store.output.state / WATERMARK_FILE
    before = path.read_bytes()
    store.output.start()
    path.write_bytes(before)
    (store.output.state / "abort").touch()
    grown(store, 1, 1000, 1000)
    retire(store)
    store.output.start()
    store.check(front=FILE_SIZE, gone=[(0, FILE_SIZE)])


def test_what_is_dispatched_is_not_lost(tmp_path: Path) -> None:
    """A batch comes again after retention has taken its messages."""
    store = SmallStore(tmp_path, log_of([100, 1000, 1000]))
    store.output.start()
    config = DispatcherConfig(store.output.store, store.output.root, once=True)
    with running(config) as run:
        retire(store)
        run.log.refresh()
        run.position = 0
        run.commit(run.scan(store.end))
    store.check(front=FILE_SIZE)


@pytest.mark.parametrize("missing", [1, 100])
def test_a_range_that_is_not_as_it_was_seen(tmp_path: Path, missing: int) -> None:
    """Its end lies within a record, as where a broker has cut the log and gone on otherwise: no
    batch is made of it, and the error names the range."""
    store = SmallStore(tmp_path, log_of([100, 100]))
    (first, middle), (_, last) = store.plain.spans
    with running(DispatcherConfig(store.output.store, store.output.root)) as run:
        run.commit(run.scan(middle))
        line = f"the log between {middle} and {last - missing} changed while it was read"
        with pytest.raises(StoreError, match=line) as raised:
            run.scan(last - missing)
        assert raised.value.fields["physical_offset"] == middle > first
        run.commit(run.scan(last))
    store.check()


def test_a_watermark_lost_before_the_first_batch(tmp_path: Path) -> None:
    """The first message has no unit, but its key is indexed."""
    store = SmallStore(tmp_path, log_of([100, 100], queue_id=-1))
    begin(store)
    path = store.output.state / WATERMARK_FILE
    path.write_bytes(bytes(path.stat().st_size))
    store.output.verify(repair=True)
    store.output.start()
    store.check()


@pytest.mark.parametrize("messages", [1, 2])
def test_an_index_outlives_its_messages(tmp_path: Path, messages: int) -> None:
    """Retention has taken all that is indexed, the log's very first message too: a start changes
    neither entries nor times."""
    store = SmallStore(tmp_path, log_of([100] * messages))
    store.output.start()
    before = store.output.index()
    grown(store, messages, 1000, 1000)
    end = store.end
    retire(store)
    begin(store)
    assert store.output.index() == before
    store.output.start()
    store.check(front=FILE_SIZE, gone=[(end, FILE_SIZE)])


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_queue_that_began_anew_with_a_lost_message(tmp_path: Path, is_seen: bool) -> None:
    """Retention has taken the queue's messages 0 to 3, and message 6 begins it anew. Then the log
    loses that one, and message 4 comes, after a start has seen the cut or before. The earlier units
    do not come back: the queue is that of a fresh output."""
    store = SmallStore(tmp_path, log_of([100] * 4))
    append(store.plain, 0, 1500, queue_id=1)
    grown(store, 0)
    store.output.start()
    end = store.end
    grown(store, 6, 100)
    retire(store)
    store.output.start()
    store.plain.cut(end)
    if is_seen:
        grown(store, 4)
        retire(store)
        store.output.start()
    grown(store, 4, 50)
    retire(store)
    store.output.start()
    store.check(front=FILE_SIZE, emptied={("Topic", 0): end})
    fresh = DerivedOutput(store.output.store, tmp_path / "fresh")
    fresh.start()
    queues = (output.root / "consumequeue" / "Topic" / "0" for output in (store.output, fresh))
    found, wanted = map(tree, queues)
    assert found == wanted


@pytest.mark.parametrize("following", [3, 0, 1, 9])
def test_readers_were_shown_what_retention_took_before_it_was_durable(
    tmp_path: Path, following: int
) -> None:
    """A run is killed, and retention takes messages that it has shown. The queue goes on, begins
    again or jumps: no message has two units, and a unit of what is gone stays in its place unless
    the queue begins anew."""
    store, durable = killed_before_it_was_durable(tmp_path, following)
    grown(store, following + 1, 50, 50)
    retire(store)
    store.output.start()
    check_what_is_gone(store, durable)


def test_retention_takes_what_readers_were_shown_before_it_comes_again(tmp_path: Path) -> None:
    """A run that goes on after a kill ends with an error, and writes nothing: units that readers
    were shown would stay beyond its own. The next start goes on where the log begins."""
    store, durable = killed_before_it_was_durable(tmp_path, 0)
    before = tree(store.output.root / "consumequeue")
    config = DispatcherConfig(store.output.store, store.output.root, durable_latency_ms=HOUR_MS)
    line = f"lost messages from {durable} on that a killed run has dispatched; start it again"
    with pytest.raises(CommitLogError, match=line) as raised, running(config) as run:
        retire(store)
        run.log.refresh()
        run.commit(run.scan(store.plain.end))
    assert raised.value.fields["physical_offset"] == durable
    assert tree(store.output.root / "consumequeue") == before
    store.output.start()
    check_what_is_gone(store, durable)


def test_a_run_goes_on_where_retention_was_faster(tmp_path: Path) -> None:
    """Readers had not been shown what is gone: it is listed, and no start is needed."""
    store = SmallStore(tmp_path, log_of([100, 100, 1000, 1000]))
    seen = store.plain.spans[0][1]
    with running(DispatcherConfig(store.output.store, store.output.root)) as run:
        run.commit(run.scan(seen))
        retire(store)
        run.log.refresh()
        run.commit(run.scan(store.plain.end))
    fronts = [(0, 0), (seen, FILE_SIZE)]
    store.check(front=FILE_SIZE, gone=[(seen, FILE_SIZE)], fronts=fronts)


def killed_before_it_was_durable(directory: Path, following: int) -> tuple[SmallStore, int]:
    """Dispatch queue offsets 0 to 2 in the log's first file and ``following`` in the second, and
    end as by a kill; return the watermark, after the first message."""
    plain = log_of([100] * 3)
    append(plain, 0, 1000, queue_id=1)
    append(plain, following, 1000)
    assert plain.spans[-1][0] == FILE_SIZE
    store, durable = SmallStore(directory, plain), plain.spans[0][1]
    config = DispatcherConfig(store.output.store, store.output.root, durable_latency_ms=HOUR_MS)
    with pytest.raises(KeyboardInterrupt), running(config) as run:
        run.commit(run.scan(durable))
        run.commit(run.scan(plain.end), durable=False)
        raise KeyboardInterrupt
    assert store.end == durable
    return store, durable


def check_what_is_gone(store: SmallStore, durable: int) -> None:
    gone = [(durable, FILE_SIZE)]
    fronts = [(0, 0), (FILE_SIZE, FILE_SIZE)]
    store.check(front=FILE_SIZE, gone=gone, shown=gone, fronts=fronts)
    assert store.output.verify().differences == ()
