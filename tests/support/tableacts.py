"""Acts of other programs on a table that a follower fills, by the libraries of its format: they
append rows, compact, expire and roll back.

``python -m tests.support.tableacts TABLE SEED`` acts at random moments, prints the name of each
act, and ends with its stdin.
"""

from __future__ import annotations

import random
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from reput.sinks.iceberg.datafiles import commit
from reput.sinks.iceberg.marks import Found, Marks
from reput.sinks.iceberg.table import IcebergTarget
from tests.sinks.test_tables import STORE_ID
from tests.support.cli import ROOT
from tests.support.filledtables import FilledTable, Filling
from tests.support.processes import module_command

LONGEST_PAUSE_SECONDS = 0.05
END_SECONDS = 60.0
ATTEMPTS = 5
FOREIGN = "other"
"""The identity in rows of other programs."""
MARKS = Marks(STORE_ID)
Act = Callable[[FilledTable, random.Random], None]


def foreign_rows(rows: pa.Table) -> pa.Table:
    """Rows that another program adds, made of the first one that is there."""
    first = rows.slice(0, 1)
    at = first.schema.get_field_index("storeId")
    return first.set_column(at, first.schema.field(at), pa.array([FOREIGN], pa.string()))


def append(table: FilledTable, _rng: random.Random) -> None:
    """Append a row."""
    if table.delta is not None:
        rows = DeltaTable(table.delta).to_pyarrow_table()
        write_deltalake(table.delta, foreign_rows(rows), mode="append")
    else:
        opened = table.iceberg()
        opened.append(foreign_rows(opened.scan(limit=1).to_arrow()))


def compact(table: FilledTable, rng: random.Random) -> None:
    """Replace files by one with the same rows."""
    if table.delta is not None:
        DeltaTable(table.delta).optimize.compact()
        return
    opened = table.iceberg()
    tasks = [task for task in opened.scan().plan_files() if isinstance(task, FileScanTask)]
    chosen = rng.sample(tasks, min(len(tasks), 5))
    scan = ArrowScan(opened.metadata, opened.io, opened.schema(), AlwaysTrue())
    transaction = opened.transaction()
    with transaction.update_snapshot().overwrite() as snapshot:
        for task in chosen:
            snapshot.delete_data_file(task.file)
        for file in _dataframe_to_data_files(
            transaction.table_metadata, scan.to_table(chosen), opened.io
        ):
            snapshot.append_data_file(file)
    # once: on another head the library would delete files that were not looked at
    commit(opened.catalog, opened, transaction)


def expire(table: FilledTable, rng: random.Random) -> None:
    """Expire some snapshots, or all old ones. The last mark stays after a rollback, without which
    nobody could see it. Of a Delta table, write the newest state apart."""
    if table.delta is not None:
        DeltaTable(table.delta).create_checkpoint()
        return
    opened = table.iceberg()
    marked = next((one for one in line(opened) if is_marked(one)), None)
    text = opened.properties.get(MARKS.position_key)
    newest = Found.parse(text).snapshot_id if text else None
    keep = {one.snapshot_id for one in line(opened)[:1]}
    if marked is not None and marked.snapshot_id != newest:
        keep.add(marked.snapshot_id)
    old = [one.snapshot_id for one in opened.snapshots() if one.snapshot_id not in keep]
    chosen = old if rng.random() < 0.3 else [one for one in old if rng.random() < 0.5]
    if chosen:
        opened.maintenance.expire_snapshots().by_ids(chosen).commit()


def roll_back(table: FilledTable, rng: random.Random) -> None:
    """Bring an older version back; of an Iceberg table, one that tells a position."""
    if table.delta is not None:
        delta = DeltaTable(table.delta)
        delta.restore(rng.randrange(delta.version() + 1))
        return
    opened = table.iceberg()
    marked = [one.snapshot_id for one in line(opened)[1:] if is_marked(one)][:5]
    if marked:
        opened.manage_snapshots().rollback_to_snapshot(rng.choice(marked)).commit()


def set_property(table: FilledTable, rng: random.Random) -> None:
    """Change the table's properties."""
    if table.delta is not None:
        days = f"interval {rng.randrange(1, 99)} days"
        DeltaTable(table.delta).alter.set_table_properties({"delta.logRetentionDuration": days})
    else:
        table.iceberg().transaction().set_properties(more=str(rng.random())).commit_transaction()


def compact_by_reput(table: FilledTable, _rng: random.Random) -> None:
    """Compact as ``reput table``."""
    table.target().upkeep().compact()


def expire_by_reput(table: FilledTable, rng: random.Random) -> None:
    """Expire as ``reput table``."""
    target = table.target()
    kept = {"kept_snapshots": rng.randrange(1, 5)} if isinstance(target, IcebergTarget) else {}
    target.upkeep(**kept).expire()


ACTS: Mapping[str, Act] = {
    act.__name__: act
    for act in (
        append, compact, expire, roll_back, set_property, compact_by_reput, expire_by_reput,
    )
}  # fmt: skip


def act(table: FilledTable, rng: random.Random) -> str | None:
    """One act; its name, or None if commits of another program were faster each time."""
    name = rng.choice([*ACTS])
    for _ in range(ATTEMPTS):
        with suppress(DeltaError, CommitFailedException):
            ACTS[name](table, rng)
            return name
    return None


def line(table: Table) -> list[Snapshot]:
    """The snapshots of the main branch, newest first, as far as they are there."""
    snapshots = {one.snapshot_id: one for one in table.snapshots()}
    found, current = list[Snapshot](), table.current_snapshot()
    while current is not None:
        found.append(current)
        current = snapshots.get(current.parent_snapshot_id or 0)
    return found


def is_marked(snapshot: Snapshot) -> bool:
    """Whether a follower has committed a position by it."""
    return snapshot.summary is not None and snapshot.summary[MARKS.position_key] is not None


def foreign_count(table: FilledTable) -> int:
    """The number of rows of other programs."""
    if table.delta is not None:
        ids = DeltaTable(table.delta).to_pyarrow_table(columns=["storeId"])
    else:
        ids = table.iceberg().scan(selected_fields=("storeId",)).to_arrow()
    return int(pc.sum(pc.equal(ids.column("storeId"), FOREIGN)).as_py() or 0)


class ActingProcess:
    """Another process that acts on a table within a ``with`` block."""

    def __init__(self, table: FilledTable, seed: int) -> None:
        command = [*module_command("tests.support.tableacts"), str(table), str(seed)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.acts = list[str]()
        """The names of its acts; of all of them after the block."""

    def __enter__(self) -> ActingProcess:
        return self

    def wait(self) -> None:
        """Wait for one more act."""
        assert self._process.stdout is not None
        self.acts.append(self._process.stdout.readline().strip())
        assert self.acts[-1], "it has ended"

    def __exit__(self, *_error: object) -> None:
        try:
            self.acts += self._process.communicate(timeout=END_SECONDS)[0].split()
        finally:
            self._process.kill()
        assert self._process.returncode == 0


def fill_while_acting(
    filling: Filling,
    table: FilledTable,
    rng: random.Random,
    harm: Callable[[], object] = lambda: None,
    seen: FilledTable | None = None,
) -> Counter[str]:
    """Fill a new table while another process acts on it, which it knows as ``seen``, and check it;
    the number of acts and of errors, by kind. ``harm`` is called before each write meanwhile."""
    first = table.follower()
    filling.source.write(first, first.position() or 0, filling.ends[0])
    first.close()
    with ActingProcess(seen or table, rng.randrange(1 << 32)) as other:

        def before_write() -> None:
            if rng.random() < 0.4:
                other.wait()
            harm()

        errors = filling.fill(table, rng, before_write)
    assert filling.fill(table, rng) == []
    filling.check(table)
    return Counter([*other.acts, *(error.partition(":")[0] for error in errors)])


def main() -> None:
    """Act until stdin ends."""
    table, rng = FilledTable.parse(sys.argv[1]), random.Random(int(sys.argv[2]))
    while True:
        name = act(table, rng)
        if name is not None:
            print(name, flush=True)
        pause = rng.random() * LONGEST_PAUSE_SECONDS
        if select.select([sys.stdin], [], [], pause)[0]:
            break


if __name__ == "__main__":
    main()
