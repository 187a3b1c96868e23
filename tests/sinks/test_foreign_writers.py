"""Other programs change a Delta table at random moments, also within a write: rows and position
stay those of the log."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from reput.sinks.delta.table import DeltaTarget
from tests.sinks.test_deltarestores import FOREIGN, append_foreign_row
from tests.sinks.test_tables import STORE_ID, Source, plain_source
from tests.support.settings import ANY_SETTINGS
from tests.support.tables import plain_columns, plain_rows
from tests.support.wire import PlainLog

WRITES = 8
ROUNDS = 4 * WRITES
Act = Callable[[Path, random.Random], object]


def compact(table: Path, _rng: random.Random) -> object:
    """Few large files for many small ones."""
    return DeltaTable(table).optimize.compact()


def vacuum(table: Path, _rng: random.Random) -> object:
    """Remove the files that no row is in, at once."""
    return DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)


def restore(table: Path, rng: random.Random) -> object:
    """Bring an older version back."""
    opened = DeltaTable(table)
    return opened.restore(rng.randrange(opened.version() + 1))


def set_property(table: Path, rng: random.Random) -> None:
    """Change the metadata."""
    days = f"interval {rng.randrange(1, 99)} days"
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": days})


def add_column(table: Path, rng: random.Random) -> None:
    """Change the schema."""
    field = Field(f"more{rng.random()}".replace(".", ""), PrimitiveType("string"))
    DeltaTable(table).alter.add_columns([field])


def append(table: Path, _rng: random.Random) -> None:
    """Add a row."""
    append_foreign_row(table)


def checkpoint(table: Path, _rng: random.Random) -> None:
    """Write the state of the newest version."""
    DeltaTable(table).create_checkpoint()


OUTSIDE: tuple[Act, ...] = (
    compact, vacuum, restore, set_property, add_column, append, checkpoint,
)  # fmt: skip
WITHIN = tuple(act for act in OUTSIDE if act is not vacuum)
"""A vacuum may take the files of a write that has not ended: its retention is there for them."""


def act(table: Path, rng: random.Random, acts: tuple[Act, ...]) -> None:
    """One act, if the table permits it."""
    chosen = rng.choice(acts)
    with suppress(DeltaError):
        chosen(table, rng)
        print(chosen.__name__)


def check_history(root: Path, seed: int) -> int:
    """Follow a log while others act; the number of attempts that failed."""
    print(f"seed={seed}")
    rng, table = random.Random(seed), root / "table"
    log = PlainLog(1 << 16)
    for number in range(WRITES):
        log.append(topic=b"T%d" % (number % 2), body=b"%d" % number, queue_offset=number)
    source, ends = plain_source(root, log), [end for _, end in log.spans]
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    failures, known = 0, False
    position = None

    def disturbed(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        if rng.random() < 0.3 and position is not None:
            # a thread in which the library does not wait for these rows
            other = threading.Thread(target=act, args=(table, rng, WITHIN))
            other.start()
            other.join()

    for _ in range(ROUNDS):
        if position is not None and rng.random() < 0.5:
            act(table, rng, OUTSIDE)
        if rng.random() < 0.3:
            follower, known = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS), False
        if not known:
            position, known = follower.position(), True
        end = next((end for end in ends if end > (position or 0)), None)
        if end is None:
            break
        try:
            follower.write(position or 0, end, disturbed(source.rows(position or 0, end)))
            position = end
        except DeltaError:
            failures, known = failures + 1, False
    finish(source, table, ends)
    found = [row for row in plain_columns(table) if row["topic"] != FOREIGN]
    assert found == plain_rows(source.store)
    return failures


def finish(source: Source, table: Path, ends: list[int]) -> None:
    """Write the rest, undisturbed."""
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    position = follower.position() or 0
    if position < ends[-1]:
        source.write(follower, position, ends[-1])
    assert follower.position() == ends[-1]


def test_rows_are_those_of_the_log_whatever_others_do(tmp_path: Path, seed: int) -> None:
    """One history."""
    check_history(tmp_path, seed)


@pytest.mark.slow
def test_rows_are_those_of_the_log_in_two_hundred_histories(tmp_path: Path, seed: int) -> None:
    """In some of them writes fail, and are tried again."""
    rng = random.Random(seed)
    failures = sum(
        check_history(tmp_path / str(number), rng.randrange(1 << 32)) for number in range(200)
    )
    print(f"failures={failures}")
    assert failures > 20
