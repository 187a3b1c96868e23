"""Positions of a follower's target that are newer or older than the run knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from reput.checkpoints.followers import FollowerState, follower_file, write_follower_state
from reput.store.errors import StoreError
from reput.streaming import followers
from tests.streaming.test_followers import Held
from tests.support.following import follow, follower_state
from tests.support.tables import log_end, plain_rows

Golden = Callable[[str], Path]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower tries again at once."""
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.0)


@pytest.fixture
def held() -> Held:
    """A target that takes rows."""
    target = Held()
    target.go_on.set()
    return target


def starts(store: Path) -> list[int]:
    """Where the messages begin."""
    return [row["physicalOffset"] for row in plain_rows(store)]


@pytest.mark.parametrize("made", ["all", "a part", "nothing"])
def test_a_write_that_fails_counts_what_it_made(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture, made: str
) -> None:
    """All of it, a part, or nothing, once; and a line says what it lost."""
    store, output = golden("plain"), tmp_path / "output"
    expected, end = starts(store), log_end(store)
    log_file = store / "commitlog" / f"{0:020d}"
    with log_file.open("r+b") as file:
        file.seek(expected[5] + 4)
        file.write(bytes(4))
    reached = {"all": end, "a part": expected[20], "nothing": None}[made]

    class Failing(Held):
        def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
            failing = not self.begun.is_set()
            super().write(start, end, rows)
            if failing:
                self.end = reached
                self.offsets = [at for at in self.offsets if at < (reached or 0)]
                raise OSError("the answer was lost")

    target = Failing()
    target.go_on.set()
    follow(store, output, target, [end])
    assert target.offsets == expected
    state = follower_state(output)
    assert (state.rows, state.position, state.error) == (len(expected), end, None)
    damaged = [record.getMessage() for record in caplog.records if "data loss" in record.msg]
    assert len(damaged) == 1 and f"{expected[6] - expected[5]} bytes are damaged" in damaged[0]


def test_a_position_that_was_lost_is_refused(golden: Golden, tmp_path: Path, held: Held) -> None:
    """Gone or older than known, messages would come twice: nothing is written, and the advice
    works."""
    store, output = golden("plain"), tmp_path / "output"
    expected, end = starts(store), log_end(store)
    follow(store, output, held, [end])
    for lost in (None, expected[-1]):
        held.end = lost
        with pytest.raises(StoreError, match=f"held messages up to physical offset {end}") as found:
            follow(store, output, held, [end])
        assert held.offsets == expected
    state = follower_state(output)
    assert state.error is not None and state.error in str(found.value)
    assert state.position == end
    path = follower_file(output / "reput", held.name)
    assert f"or make it anew and remove {path}" in str(found.value)
    anew = Held()
    anew.go_on.set()
    path.unlink()
    follow(store, output, anew, [end])
    assert anew.offsets == expected


@pytest.mark.parametrize(
    "other", [Held(description="another"), Held(position_is_apart=False)], ids=["other", "together"]
)
def test_a_target_that_lost_its_messages_too_gets_them_again(
    golden: Golden, tmp_path: Path, held: Held, other: Held
) -> None:
    """Another one than before, or one that loses both at once."""
    store, output = golden("plain"), tmp_path / "output"
    follow(store, output, held, [log_end(store)])
    other.go_on.set()
    follow(store, output, other, [log_end(store)])
    assert other.offsets == starts(store)


def test_a_cut_is_no_lost_position(golden: Golden, tmp_path: Path) -> None:
    """The target goes back to the cut, and is filled again; also where it had nothing yet."""
    store, output = golden("plain"), tmp_path / "output"
    expected, end = starts(store), log_end(store)

    class Truncating(Held):
        def truncate(self, end: int) -> None:
            if self.end is not None:
                self.end = min(end, self.end)
                self.offsets = [offset for offset in self.offsets if offset < end]

    target = Truncating()
    target.go_on.set()
    follow(store, output, target, [expected[0]])
    assert target.end is None
    follow(store, output, target, [expected[0]], expected[0])
    follow(store, output, target, [end])
    follow(store, output, target, [end], expected[40])
    assert target.offsets == expected


def test_a_target_beyond_queues_that_are_built_anew_waits_for_them(
    golden: Golden, tmp_path: Path, held: Held
) -> None:
    """The log has all that it holds: it is no target of another one, and nothing comes twice."""
    store, output = golden("plain"), tmp_path / "output"
    expected, end = starts(store), log_end(store)
    follow(store, output, held, [expected[40]])
    follow(store, output, held, [expected[20], expected[30], end])
    assert held.offsets == expected
    assert follower_state(output).error is None


def test_counts_go_on_from_run_to_run(golden: Golden, tmp_path: Path, held: Held) -> None:
    """Rows, losses and what was left out add up, in two writes of a run as well; the log has lost
    nothing since."""
    store, output = golden("plain"), tmp_path / "output"
    expected, end = starts(store), log_end(store)
    earlier = FollowerState(
        held.name, held.description, rows=5, lost_bytes=7, internal_left_out=3, counts={"a": 2}
    )
    (output / "reput").mkdir(parents=True)
    write_follower_state(output / "reput", earlier)
    follow(store, output, held, [expected[20], end])
    found = follower_state(output)
    assert (found.rows, found.lost_bytes, found.internal_left_out) == (5 + len(expected), 7, 3)
    assert (found.position, found.counts) == (end, {"a": 2})
