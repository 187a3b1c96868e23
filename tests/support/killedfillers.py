"""Processes that fill a table from a log and are killed at random moments.

``python -m tests.support.killedfillers`` forks each of them, since starting one takes longer than
what it does until it is killed. It calls no library of tables itself: threads do not survive a
fork. Each line of its stdin is a JSON list: the log's directory, the ends of its messages, a table,
a seed, and the seconds after which the process is killed. Each is answered by the exit code.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy.dialects.sqlite  # noqa: F401

import reput.sinks.iceberg.datafiles
import reput.sinks.iceberg.localfiles
import reput.sinks.iceberg.restcatalog  # noqa: F401
from tests.sinks.test_tables import Source
from tests.support.cli import ROOT
from tests.support.filledtables import FilledTable, Filling
from tests.support.processes import fork, module_command

END_SECONDS = 60.0
LONGEST_SECONDS = {"delta": 0.12, "iceberg": 0.5}
"""The longest life of a table's first filler; it writes some ranges in that."""
GROWTH = 1.05
"""The next one may live so much longer: where the machine is busy, none would come to the end."""


class KilledFillers:
    """Starts them within a ``with`` block, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            module_command("tests.support.killedfillers"), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def __enter__(self) -> KilledFillers:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._process.communicate(timeout=END_SECONDS)
        finally:
            self._process.kill()

    def fill(self, filling: Filling, table: FilledTable, seed: int, seconds: float) -> bool:
        """Let one go on with a table; whether it came to the end before it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        work = [str(filling.source.store), filling.ends, str(table), seed, seconds]
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL), f"it ended with {code}"
        return code == 0


def kill_fillers(
    root: Path, tables: Iterator[FilledTable], messages: int, count: int, seed: int
) -> int:
    """Fill tables, each from a log of so many messages, until so many fillers were killed; check
    each table; return the number of kills."""
    rng, kills = random.Random(seed), 0
    with KilledFillers() as fillers:
        for number, table in enumerate(tables):
            kills += _fill_killed(Filling.of(root / str(number), messages), table, fillers, rng)
            if kills >= count:
                print(f"kills={kills} tables={number + 1} rows={(number + 1) * messages}")
                break
    return kills


def _fill_killed(
    filling: Filling, table: FilledTable, fillers: KilledFillers, rng: random.Random
) -> int:
    kills, longest = 0, LONGEST_SECONDS["iceberg" if table.delta is None else "delta"]
    while not fillers.fill(filling, table, rng.randrange(1 << 32), rng.random() * longest):
        kills, longest = kills + 1, longest * GROWTH
    filling.check(table)
    return kills


def main() -> None:
    """Fork."""
    for text in sys.stdin:
        store, ends, table, seed, seconds = json.loads(text)
        filling = Filling(Source(Path(store)), ends)
        # the kernels are loaded here
        assert sum(rows.num_rows for rows in filling.source.rows(0, ends[-1])) == len(ends)

        def work() -> None:
            errors = filling.fill(FilledTable.parse(table), random.Random(seed))  # noqa: B023
            assert not errors, errors

        pid = fork(work)
        end = os.pidfd_open(pid)
        if not select.select([end], [], [], seconds)[0]:
            signal.pidfd_send_signal(end, signal.SIGKILL)
        os.close(end)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
