"""Records that become rows: the kernel against a plain rule, of made-up logs and RocketMQ's."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reput.store.config import read_store_settings
from reput.store.log.commitlog import CommitLog
from reput.store.log.compression import MAX_INFLATED_BYTES
from reput.store.log.logtail import LogTail
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from reput.store.log.systemtopics import is_system_topic
from reput.store.rows.rowform import AS_STORED, DEFAULT_FORM, RowForm
from reput.store.rows.rows import message_rows
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.golden import GOLDEN_CASES
from tests.support.plain_rows import OWN_TOPICS, as_table, inflated, is_internal, plain_rows, stored
from tests.support.wire import PlainLog

LEFT_OUT = {"mixed": 749, "broker": 120, "orders-5.5.1": 1}
"""Golden stores that hold internal records, and at least how many."""


def read(log: CommitLog, form: RowForm = DEFAULT_FORM) -> tuple[pa.Table, int]:
    """Rows of a whole log, and the number that were left out."""
    counts: list[int] = []
    batches = message_rows(
        log, log.min_offset, LogTail(log).settled(), ROWS_SCHEMA, form, counts.append,
        delay_levels_ms=DEFAULT_DELAY_LEVELS_MS, fail_on_corrupt=False,
    )  # fmt: skip
    return pa.Table.from_batches(batches, ROWS_SCHEMA), sum(counts)


def odd_names(rng: random.Random) -> list[str]:
    """RocketMQ's own topics, names that nearly are, and others."""
    own = [*OWN_TOPICS, "rmq_sys_", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"]
    near = [name[:-1] for name in own] + [f"{name}x" for name in own]
    near += [name.swapcase() for name in own] + [f"x{name}" for name in own]
    for name in own:
        at = rng.randrange(len(name))
        near.append(f"{name[:at]}~{name[at + 1 :]}")
    others = ["Orders", "%RETRY%g", "%DLQ%g", "RMQ_SYS_", "订单", "t" * 127, ""]
    return [name for name in (*own, *near, *others) if len(name.encode()) < 128]


def test_internal_records_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """By topic and by kind of transaction; a damaged range stays, whatever it was."""
    rng = random.Random(seed)
    monkeypatch.setattr("reput.store.rows.rows.ROWS_PER_BATCH", 16)
    log = PlainLog(1 << 20)
    names = odd_names(rng)
    offsets = [
        log.append(
            topic=name.encode(), sys_flag=flag, body=b"%d" % number, properties=b"TAGS\x01t\x02"
        )
        for number, (name, flag) in enumerate(
            (name, flag) for name in names for flag in (0, 4, 8, 12)
        )
    ]
    for offset in rng.sample(offsets[1:-1], 5):
        log.put(offset + 4, b"\0\0\0\0")
    log.write(tmp_path)
    opened = CommitLog([tmp_path])
    everything = list(plain_rows(opened, 0, log.end))
    wanted = [row for row in everything if not is_internal(row)]
    rows, left_out = read(opened)
    assert rows.equals(as_table(wanted, ROWS_SCHEMA))
    assert left_out == len(everything) - len(wanted) > 0
    assert read(opened, AS_STORED) == (as_table(everything, ROWS_SCHEMA), 0)
    named = frozenset(("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"))
    asked = [row for row in everything if not is_internal(row) or row.get("topic") in named]
    assert read(opened, RowForm(named_topics=named))[0].equals(as_table(asked, ROWS_SCHEMA))
    for name in names:
        is_own = name in OWN_TOPICS or name.startswith("rmq_sys_")
        assert is_system_topic(name) is is_own, name
        assert RowForm(named_topics=named).takes_topic(name) is (not is_own or name in named)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_rows_of_rocketmqs_stores(golden: Callable[[str], Path], name: str) -> None:
    """Consumers see these, with plain bodies; everything comes as stored, if asked for."""
    log = read_store_settings(golden(name)).open_log()
    end = LogTail(log).settled()
    for form, inflate in ((DEFAULT_FORM, inflated), (AS_STORED, stored)):
        expected = list(plain_rows(log, log.min_offset, end, inflate))
        wanted = [row for row in expected if form.include_internal or not is_internal(row)]
        rows, left_out = read(log, form)
        assert rows.equals(as_table(wanted, ROWS_SCHEMA))
        assert left_out == len(expected) - len(wanted)
        assert form.include_internal or left_out >= LEFT_OUT.get(name, 0)


def test_a_body_that_is_not_inflated_says_so(tmp_path: Path) -> None:
    """bodyCompression is null exactly where the body is plain."""
    log = PlainLog(1 << 20)
    bodies: list[tuple[bytes, int]] = [
        (b"plain", 0), (zlib.compress(b"z" * 99), 1), (b"no zlib", 1),
        (zlib.compress(bytes(MAX_INFLATED_BYTES + 1)), 1), (zlib.compress(b"y"), 0x701),
    ]  # fmt: skip
    for body, flag in bodies:
        log.append(body=body, sys_flag=flag)
    log.write(tmp_path)

    def found(form: RowForm) -> list[tuple[Any, ...]]:
        rows, _ = read(CommitLog([tmp_path]), form)
        columns = rows.select(["body", "bodyCompression"]).to_pydict()
        return list(zip(*columns.values(), strict=True))

    codecs = [None, "zlib", "zlib", "zlib", "unknown"]
    as_stored = [(body, codec) for (body, _), codec in zip(bodies, codecs, strict=True)]
    assert found(DEFAULT_FORM) == [as_stored[0], (b"z" * 99, None), *as_stored[2:]]
    assert found(AS_STORED) == as_stored
    assert found(RowForm(max_inflated_bytes=98)) == as_stored
