"""Swapping built parts in: whatever is killed where, each part is the old or the new one, whole."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import (
    build_root,
    check_swappable,
    drop_replaced,
    finish_swap,
    has_begun_swap,
    swap_in,
)
from reput.store import fsops
from reput.store.errors import OutputError, OwnershipError, StoreError, UsageError
from reput.store.files import ASIDE_DIRECTORY
from tests.support.golden import tree
from tests.support.operations import before_operations
from tests.support.power_cuts import Disk, mount
from tests.support.processes import holder, is_killed_at
from tests.support.recorder import Recorder

PARTS = ["consumequeue", "index", "gone/topic", "fresh/topic", "checkpoint", "reput"]
"""Both sides have the first, the second and the last two; one side each the others."""
NO_EXCHANGE = "".join(f"exchange:{number}=EINVAL," for number in range(1, 5))
"""As a file system answers that cannot."""


def step(**fields: object) -> str:
    """A journal of one step, with these fields instead of sound ones."""
    sound = {"path": "consumequeue", "kept": "consumequeue.replaced-1", "inode": None}
    return json.dumps([{**sound, **fields}])


def old_files(part: str) -> dict[str, bytes]:
    if part == "checkpoint":
        return {"": b"old"}
    return {} if part == "fresh/topic" else {"0/a": b"old", "only_old": b""}


def new_files(part: str) -> dict[str, bytes]:
    if part == "checkpoint":
        return {"": b"new"}
    return {} if part == "gone/topic" else {"0/a": b"new", "only_new": b""}


def lay_down(root: Path, files: Callable[[str], dict[str, bytes]]) -> None:
    for part in PARTS:
        for name, data in files(part).items():
            path = root / part / name if name else root / part
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def make_output(output: Path) -> Path:
    """Old parts, the new ones aside, and something that is none of our business."""
    shutil.rmtree(output, ignore_errors=True)
    lay_down(output, old_files)
    lay_down(build_root(output), new_files)
    (output / "commitlog").mkdir()
    (output / "commitlog" / "0").write_bytes(b"log")
    return output


def files_of(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    own = ("owner.json", "owner.lock")
    return {name: data for name, data in tree(path).items() if name not in own}


def generations(output: Path) -> list[str]:
    """old, new or absent, for each part; anything else fails."""
    found = []
    for part in PARTS:
        there = files_of(output / part)
        if there == new_files(part):
            found.append("new")
        elif there == old_files(part):
            found.append("old")
        else:
            assert there == {}, part
            found.append("absent")
    return found


def assert_swapped(output: Path, number: int = 1) -> None:
    """Everything is new, everything old is kept, nothing else is left."""
    assert generations(output) == ["new"] * len(PARTS)
    assert (output / "commitlog" / "0").read_bytes() == b"log"
    assert not (output / ASIDE_DIRECTORY).exists()
    for part in PARTS:
        first, slash, rest = part.partition("/")
        assert files_of(output / f"{first}.replaced-{number}{slash}{rest}") == old_files(part)


def test_parts_are_swapped_and_the_old_ones_kept(tmp_path: Path) -> None:
    """Directories, a file, parts that only one side has; what was kept is said."""
    output = make_output(tmp_path / "output")
    kept = swap_in(output, PARTS)
    assert_swapped(output)
    assert kept == [
        output / name
        for name in (
            "consumequeue.replaced-1", "index.replaced-1", "gone.replaced-1/topic",
            "checkpoint.replaced-1", "reput.replaced-1",
        )
    ]  # fmt: skip


def test_numbers_count_on_and_what_was_kept_is_dropped_by_name(tmp_path: Path) -> None:
    """A second swap takes the next number; dropping leaves what is none of the parts'."""
    output = make_output(tmp_path / "output")
    (output / "consumequeue.replaced-6").mkdir()
    (output / "mine.replaced-2").mkdir()
    (output / "index.replaced-x").mkdir()
    swap_in(output, PARTS)
    assert_swapped(output, 7)
    before = generations(output)
    dropped = drop_replaced(output, ["consumequeue", "index", "gone", "checkpoint", "reput"])
    assert len(dropped) == 6
    left = {path.name for path in output.iterdir() if "replaced" in path.name}
    assert left >= {"mine.replaced-2", "index.replaced-x"}
    assert generations(output) == before


@pytest.mark.parametrize(
    "failpoints",
    [
        pytest.param("", id="exchange"),
        pytest.param(NO_EXCHANGE, id="two renames", marks=pytest.mark.extended),
    ],
)
def test_a_killed_swap_is_old_or_new_and_the_next_start_ends_it(
    tmp_path: Path, seed: int, failpoints: str
) -> None:
    """kill -9 before every operation, and again and again before some of what goes on."""
    rng, outcomes = random.Random(seed), set()
    for ordinal in count(1):
        output = make_output(tmp_path / "output")
        killed = is_killed_at(ordinal, partial(swap_in, output, PARTS), failpoints)
        begun, found = has_begun_swap(output), generations(output)
        if not failpoints:
            # a name never stands for nothing, but where one side has nothing
            assert "absent" not in found
        if found[-1] == "new":
            assert found == ["new"] * len(PARTS)
        for again in count(rng.randrange(1, 11), 10):
            if not is_killed_at(again, partial(finish_swap, output), failpoints):
                break
        before, found = found, generations(output)
        assert found[0] == "new" if begun else found == before
        outcomes.add(found[0])
        if found[0] == "new":
            assert_swapped(output)
        else:
            assert found == ["old"] * len(PARTS)
            assert not (output / ASIDE_DIRECTORY).exists()
        if not killed:
            break
    assert outcomes == {"old", "new"}
    assert ordinal > 20


def test_a_killed_swap_is_durable_once_it_is_finished(ram_path: Path) -> None:
    """A kill comes before each of its syncs; its steps are then known to the kernel alone, and the
    next process finds them done. A power cut after that finds all parts new, too."""
    for ordinal in count(1):
        output, left = make_output(ram_path / "output"), ordinal

        def kill(operation: str, _: str) -> None:
            nonlocal left
            left -= operation == "sync"
            if not left:
                left = -1
                raise KeyboardInterrupt

        with Recorder(output) as recorder:
            with before_operations(kill), suppress(KeyboardInterrupt):
                swap_in(output, PARTS)
            begun = has_begun_swap(output)
            finish_swap(output)
        recorder.check()
        mount(Disk.after(recorder).durable(), output)
        assert not has_begun_swap(output)
        # parts that were built aside may come back without a journal
        finish_swap(output)
        if begun or left > 0:
            assert_swapped(output)
        else:
            assert generations(output) == (["old"] if ordinal < 10 else ["new"]) * len(PARTS)
        if left > 0:
            break
    assert ordinal > 10


@pytest.mark.parametrize("operation", ["exchange:2", "rename:3", "sync:4", "unlink:1"])
def test_a_failed_swap_is_ended_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """An error in the middle is said, and nothing of what was built is thrown away."""
    output = make_output(tmp_path / "output")
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints(f"{operation}=EIO"))
        with pytest.raises(OutputError):
            swap_in(output, PARTS)
    finish_swap(output)
    assert_swapped(output)


def test_a_store_that_was_copied_in_mid_swap_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes say what is in place, and a copy has others: old or new, and the other one kept."""
    for number in count(1):
        output, copy = make_output(tmp_path / "output"), tmp_path / f"copy{number}"
        with monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", fsops._Failpoints(f"rename:{number}=EIO"))
            try:
                swap_in(output, PARTS)
            except OutputError:
                finish_swap(shutil.copytree(output, copy))
            else:
                break
        assert not (copy / ASIDE_DIRECTORY).exists()
        if number > 1:
            for part, generation in zip(PARTS, generations(copy), strict=True):
                assert generation in ("old", "new")
                first, slash, rest = part.partition("/")
                kept = files_of(copy / f"{first}.replaced-1{slash}{rest}")
                assert kept == (old_files if generation == "new" else new_files)(part)
    assert number > 5


def test_nothing_to_finish_takes_no_lock(tmp_path: Path) -> None:
    """As at every start; an output that is not there yet is not made."""
    assert finish_swap(tmp_path / "output") == []
    assert not (tmp_path / "output").exists()


def test_what_a_running_rebuild_has_built_is_let_be(tmp_path: Path) -> None:
    """Whoever owns the output is building there."""
    output = make_output(tmp_path / "output")
    with holder(lambda: Ownership(output).__enter__()), pytest.raises(OwnershipError):
        finish_swap(output)
    assert files_of(build_root(output) / "consumequeue") == new_files("consumequeue")


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "null", "5", '"path"', '{"path": "consumequeue"}', "[5]", '["path"]', "[[]]",
        '[{"path": "consumequeue"}]', pytest.param("[" * 100_000, id="deep"),
        step(path=5), step(path=None), step(kept=[]),
        step(kept={}), step(inode="5"), step(inode=1.5), step(inode=True), step(more=1),
        step(path="../elsewhere"), step(path="/elsewhere"), step(kept="index/../.."), step(kept=""),
        step(path="index\0"), step(path="\ud800"), step(path="a" * 256),
        f"[{step()[1:-1]}, {step(kept=7)[1:-1]}]",
    ],
)  # fmt: skip
def test_a_damaged_journal_changes_nothing(tmp_path: Path, text: str) -> None:
    """The line names it and what to do."""
    output = make_output(tmp_path / "output")
    journal = output / ASIDE_DIRECTORY / "swap.json"
    journal.write_text(text)
    before = tree(output / ASIDE_DIRECTORY)
    with pytest.raises(StoreError, match=f"cannot read {journal}, .*, then remove it"):
        finish_swap(output)
    assert generations(output) == ["old"] * len(PARTS)
    assert tree(output / ASIDE_DIRECTORY) == before


def test_links_and_other_file_systems_are_refused(tmp_path: Path) -> None:
    """A directory built below the output could not take their places."""
    output = tmp_path / "output"
    (tmp_path / "elsewhere").mkdir()
    output.mkdir()
    (output / "index").symlink_to(tmp_path / "elsewhere")
    check_swappable(output, ["consumequeue"])
    with pytest.raises(UsageError, match=f"{output / 'index'} is a link"):
        check_swappable(output, ["consumequeue", "index"])
    memory = Path("/dev/shm")
    if memory.is_dir() and memory.stat().st_dev != output.stat().st_dev:
        with pytest.raises(UsageError, match="another file system"):
            check_swappable(output, [str(memory)])


def test_exchange_swaps_a_file_with_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system call itself; a name that is missing is an error, not 'cannot'."""
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "directory").mkdir()
    assert fsops.exchange(tmp_path / "file", tmp_path / "directory")
    assert (tmp_path / "directory").read_bytes() == b"data"
    assert (tmp_path / "file").is_dir()
    with pytest.raises(OutputError, match="No such file"):
        fsops.exchange(tmp_path / "none", tmp_path / "file")
    for name in ("EINVAL", "ENOSYS"):
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(f"exchange:1={name}"))
        assert not fsops.exchange(tmp_path / "file", tmp_path / "directory")
    monkeypatch.setattr(fsops, "_libc", object())
    assert not fsops.exchange(tmp_path / "file", tmp_path / "directory"), "an old C library"
