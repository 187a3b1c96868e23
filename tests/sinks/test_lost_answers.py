"""Calls into tables that were made, and failed all the same: every row is there once, and counted
once."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import DataScan

from reput.sinks.delta.table import DeltaTarget
from reput.store.bodies.declaration import BodyColumns
from reput.store.follower import FollowerTarget
from reput.streaming import followers
from tests.sinks.test_tables import columns_of
from tests.support.cli import ROOT
from tests.support.following import follow, follower_state
from tests.support.processes import module_command
from tests.support.s3 import BUCKET, S3Server, running_server
from tests.support.tableformats import FORMATS, iceberg_target
from tests.support.tables import plain_columns, plain_rows
from tests.support.wire import PlainLog

KILLED = 9
MESSAGES, CUT = 6, 3
OLD_BODIES = b'{"id": 1}', b"no JSON"
NEW_BODIES = b'{"id": 2}', b"NO JSON"


def answer_lost() -> None:
    """Fail."""
    raise DeltaError("the answer was lost")


class LostAnswer:
    """Makes one call, and fails then."""

    def __init__(
        self, number: int, fail: Callable[[], None] = answer_lost, *, is_made: bool = True
    ) -> None:
        """Without ``is_made`` it is the request that is lost."""
        self.is_made = is_made
        self.number = number
        """The call that fails, from 1."""
        self.calls = 0
        self.fail = fail

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted."""

        def made(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            is_lost = self.calls == self.number
            if is_lost and not self.is_made:
                self.fail()
            result = call(*arguments, **options)
            if is_lost:
                self.fail()
            return result

        return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower tries again at once."""
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.0)


def lay(store: Path, kept: int) -> list[int]:
    """A log of which ``kept`` messages were there before; the ends of its messages."""
    log = PlainLog(1 << 16)
    for number in range(MESSAGES):
        body = (OLD_BODIES if number < kept else NEW_BODIES)[number % 2]
        log.append(topic=b"T", body=body, queue_offset=number)
    log.write(store / "commitlog")
    return [end for _, end in log.spans]


@dataclass(frozen=True)
class Library:
    """The calls by which a format's library is used."""

    commits: Mapping[str, object]
    """Name -> the object that has it."""
    others: Mapping[str, object]
    target: Callable[[Path], FollowerTarget]
    """A target below a directory, with columns of JSON bodies."""
    rows: Callable[[Path], list[dict[str, Any]]]
    """Columns of the table's rows there."""


COLUMNS = BodyColumns({"T": {"id": "long"}})


def delta_in(root: Path) -> str:
    """The table of a directory; in object storage, if the environment gives access to one."""
    return f"s3://{BUCKET}/{root.name}" if "AWS_ENDPOINT_URL" in os.environ else str(root / "table")


LIBRARIES = {
    "delta": Library(
        {"write_deltalake": deltalake, "delete": DeltaTable},
        dict.fromkeys(("__init__", "transaction_version", "history", "version"), DeltaTable),
        lambda root: DeltaTarget(delta_in(root), body_columns=COLUMNS, interval_seconds=0.0),
        lambda root: plain_columns(delta_in(root)),
    ),
    "iceberg": Library(
        {"commit_table": SqlCatalog, "create_table": SqlCatalog},
        {"load_table": SqlCatalog, "create_namespace": SqlCatalog, "plan_files": DataScan},
        lambda root: iceberg_target(root / "table", COLUMNS),
        lambda root: columns_of(FORMATS["iceberg"], root / "table"),
    ),
}
libraries = pytest.mark.parametrize("name", sorted(LIBRARIES))


def first_run(library: Library, root: Path) -> None:
    """Three writes."""
    ends = lay(root / "store", MESSAGES)
    follow(root / "store", root / "output", library.target(root), [ends[1], ends[3], ends[-1]])


def second_run(library: Library, root: Path) -> None:
    """The log was cut and written anew meanwhile."""
    ends = lay(root / "store", CUT)
    cut = ends[CUT - 1]
    follow(root / "store", root / "output", library.target(root), [cut, ends[-1]], cut)


RUNS = first_run, second_run


def check_table(library: Library, root: Path) -> None:
    """Rows and position are those of a run without a failure."""
    expected = plain_rows(root / "store")
    rows = library.rows(root)
    assert rows == [{name: row[name] for name in rows[0]} for row in expected]
    state = follower_state(root / "output")
    assert state.position == expected[-1]["physicalOffset"] + expected[-1]["storeSize"]
    assert state.error is None


def check(library: Library, root: Path) -> None:
    """The counts are, too."""
    check_table(library, root)
    state = follower_state(root / "output")
    assert (state.rows, dict(state.counts)) == (2 * MESSAGES - CUT, {"bad bodies": 3 + 2})


def lose(patches: pytest.MonkeyPatch, calls: Mapping[str, object], lost: LostAnswer) -> None:
    """Lose one answer of these calls."""
    for name, place in calls.items():
        patches.setattr(place, name, lost.around(getattr(place, name)))


def lost_answers(
    root: Path, library: Library, calls: Mapping[str, object], *, is_made: bool = True
) -> int:
    """Run with each call's answer, or its request, lost in turn, and check; the number of calls."""
    for number in itertools.count(1):
        lost, place = LostAnswer(number, is_made=is_made), root / str(number)
        with pytest.MonkeyPatch.context() as patches:
            lose(patches, calls, lost)
            for run in RUNS:
                run(library, place)
        check(library, place)
        if lost.calls < number:
            return lost.calls
    raise AssertionError


@libraries
def test_a_commit_that_was_made_counts_as_made(tmp_path: Path, name: str) -> None:
    """The table's first one, one that adds rows, one that takes rows back."""
    library = LIBRARIES[name]
    assert lost_answers(tmp_path, library, library.commits) >= 5


@libraries
def test_a_commit_that_was_not_made_is_counted_once(tmp_path: Path, name: str) -> None:
    """It failed after its rows were taken, and they come again."""
    library = LIBRARIES[name]
    assert lost_answers(tmp_path, library, library.commits, is_made=False) >= 5


@pytest.mark.slow
@libraries
def test_any_call_whose_answer_is_lost(tmp_path: Path, name: str) -> None:
    """The others too."""
    library = LIBRARIES[name]
    calls = lost_answers(tmp_path, library, library.others)
    print(f"calls={calls}")
    assert calls >= 15


@pytest.fixture
def object_storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server, to which the environment gives access."""
    with running_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_commit_to_object_storage_that_was_made_counts_as_made(
    tmp_path: Path, object_storage: S3Server
) -> None:
    """The library asks again, finds the version that it has written itself, and fails."""
    object_storage.lose(2, r"PUT .*/_delta_log/\d+\.json")
    for run in RUNS:
        run(LIBRARIES["delta"], tmp_path)
    assert object_storage.lose(0) >= 5
    check(LIBRARIES["delta"], tmp_path)


@pytest.mark.slow
def test_any_request_to_object_storage_whose_answer_is_lost(
    tmp_path: Path, object_storage: S3Server
) -> None:
    """The others too."""
    requests = 0
    for number in itertools.count(1):
        root = tmp_path / str(number)
        object_storage.lose(number)
        for run in RUNS:
            run(LIBRARIES["delta"], root)
        requests = object_storage.lose(0)
        check(LIBRARIES["delta"], root)
        if requests < number:
            break
    print(f"requests={requests}")
    assert requests >= 20


@pytest.mark.slow
@libraries
def test_a_process_killed_right_after_any_call(tmp_path: Path, name: str) -> None:
    """In either run; the next process finds out what was made."""
    kills, library = 0, LIBRARIES[name]
    for number in range(len(RUNS)):
        for call in itertools.count(1):
            root = tmp_path / f"{number}-{call}"
            for run in RUNS[:number]:
                run(library, root)
            command = [*module_command("tests.sinks.test_lost_answers"), name, root, number, call]
            child = subprocess.run([*map(str, command)], cwd=ROOT, check=False)
            for run in RUNS[number:]:
                run(library, root)
            check_table(library, root)
            if child.returncode == 0:
                break
            assert child.returncode == KILLED
            kills += 1
    print(f"kills={kills}")
    assert kills >= 20


def main() -> None:
    """Make one run, and end right after a call."""
    name, root, number, call = sys.argv[1:]
    library, lost = LIBRARIES[name], LostAnswer(int(call), lambda: os._exit(KILLED))
    with pytest.MonkeyPatch.context() as patches:
        lose(patches, {**library.commits, **library.others}, lost)
        RUNS[int(number)](library, Path(root))


if __name__ == "__main__":
    main()
