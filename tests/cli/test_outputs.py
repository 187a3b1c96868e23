"""A path that is no output, to every command that reads one and to the queue source: said, with
exit code 2, and never shown as a store without messages."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from reput.store.errors import ReputError
from tests.sources.test_queue_rows import batch_reader
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput

READING: Sequence[Sequence[object]] = (
    ("status",),
    ("verify",),
    ("expire",),
    ("get", "Topic_0", 0, 0),
    ("tail", "Topic_0"),
    ("query", "Topic_0", "--key", "k"),
    ("search-time", "Topic_0", 0, 0),
    ("inspect", "queue", "Topic_0", 0),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> DerivedOutput:
    """A store without queues of its own, and an output of it."""
    built = DerivedOutput.build("plain", tmp_path_factory.mktemp("plain"))
    for kind in ("consumequeue", "index"):
        shutil.rmtree(built.store / kind)
    return built


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> DerivedOutput:
    """Another log, longer than the first, and its output."""
    return DerivedOutput.build("mixed", tmp_path_factory.mktemp("mixed"))


def called(
    call: Call, store: Path, output: Path | None, words: Sequence[object]
) -> tuple[int, str]:
    """Exit code and error of a command."""
    name = words[:2] if words[0] == "inspect" else words[:1]
    place = () if output is None else ("--output", output)
    done = call(*name, store, *words[len(name) :], *place)
    return done.returncode, done.stderr


def rows(store: Path, output: Path) -> int:
    """How many the queue source has, read as Spark's planner and tasks do."""
    reader = batch_reader(store, output=output)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_path_that_is_no_output_yet_is_named(
    built: DerivedOutput, tmp_path: Path, words: Sequence[object], call: Call
) -> None:
    """No directory at all, an empty one: which it is, and what was looked for."""
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    for place, said in ((nowhere, f"no directory {nowhere}"), (empty, f"{empty} is not an output")):
        code, error = called(call, built.store, place, words)
        assert (code, said in error) == (1, True), error
        assert error.count("\n") == 1
    assert list(empty.iterdir()) == []
    assert not nowhere.exists()


@pytest.mark.parametrize("name", ["status", "get", "tail", "query", "search-time", "inspect"])
def test_an_output_of_another_log_is_a_wrong_call(
    built: DerivedOutput, other: DerivedOutput, name: str, call: Call
) -> None:
    """The other log is longer or shorter."""
    (words,) = [words for words in READING if words[0] == name]
    for log, output in ((built, other), (other, built)):
        code, error = called(call, log.store, output.root, words)
        assert (code, f"{output.root} is not an output of the log of {log.store}" in error) == (
            2,
            True,
        )


def test_the_queue_source_reads_no_wrong_path(
    built: DerivedOutput, other: DerivedOutput, tmp_path: Path
) -> None:
    """It gave no rows."""
    assert rows(built.store, built.root) > 0
    for place in (tmp_path / "nowhere", tmp_path, other.root):
        with pytest.raises(ReputError, match=str(place)):
            rows(built.store, place)


def test_a_store_without_queues_is_no_wrong_path(
    built: DerivedOutput, tmp_path: Path, call: Call
) -> None:
    """Its broker has built none yet; who looks for a message there is told where it was looked
    for. An output that a dispatcher has only begun is one as well."""
    assert called(call, built.store, None, ("status",))[0] == 0
    code, error = called(call, built.store, None, ("get", "Topic_0", 0, 0))
    assert (code, f"in {built.store};" in error, "--output" in error) == (1, True, True)
    (tmp_path / "begun" / "reput").mkdir(parents=True)
    assert called(call, built.store, tmp_path / "begun", ("status",))[0] == 0
