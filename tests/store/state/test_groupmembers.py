"""Members of a group as files and locks: who is one, and who has a queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, OwnershipError, UsageError
from reput.store.filelocks import HeldLock, lock
from reput.store.state import groupmembers
from reput.store.state.groupmembers import GroupMember, Member, lock_group_alone
from tests.support.operations import once_before
from tests.support.processes import open_files

MEMBERS = Path("reput", "groups", "g", "members")


def member(client_id: str, *topics: str, strategy: str = "S") -> Member:
    return Member(client_id, frozenset(topics), strategy)


def test_a_member_takes_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    """The file of that one is longer; those of others that were killed are no members, and go."""
    directory = tmp_path / MEMBERS
    directory.mkdir(parents=True)
    for client_id in ("a", "killed"):
        left = {"topics": ["T" * 100, "Other"], "strategy": "S"}
        (directory / client_id).write_text(json.dumps(left))
    first, second = member("a", "T"), member("b", "T", "U")
    with (
        GroupMember(tmp_path, "g", first) as one,
        GroupMember(tmp_path, "g", second) as other,
    ):
        for each in (one, other):
            assert {*each.members()} == {first, second}
            assert len(each.members()) == 2
        assert {path.name for path in directory.iterdir()} == {"a", "b"}
    assert not [*directory.iterdir()]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b'{"topics": ["T"]}', b'{"strategy": "S"}',
        b'{"topics": 7, "strategy": "S"}',
    ],
)  # fmt: skip
def test_who_holds_a_file_without_saying_what_it_wants_is_no_member_yet(
    tmp_path: Path, content: bytes
) -> None:
    """It writes its file once it has the lock; others join and share the queues meanwhile."""
    (tmp_path / MEMBERS).mkdir(parents=True)
    path = tmp_path / MEMBERS / "joining"
    path.write_bytes(content)
    with (
        lock(path) or pytest.fail("not taken"),
        GroupMember(tmp_path, "g", member("a", "T")) as one,
    ):
        assert one.members() == [member("a", "T")]
        assert path.read_bytes() == content


def test_a_file_that_is_taken_for_a_dead_members_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member removes it between its creation and its lock."""
    removed: list[Path] = []

    def raced(path: Path, **how: float | None) -> HeldLock | None:
        held = lock(path, **how)  # type: ignore[arg-type]
        if path.name == "a" and not removed:
            path.unlink()
            removed.append(path)
        return held

    monkeypatch.setattr(groupmembers, "lock", raced)
    with (
        GroupMember(tmp_path, "g", member("a", "T")),
        GroupMember(tmp_path, "g", member("b", "T")) as other,
    ):
        assert {each.client_id for each in other.members()} == {"a", "b"}
    assert removed


def test_a_member_that_leaves_removes_its_own_file(tmp_path: Path) -> None:
    """While it still holds it: later it may be that of the next one with its id."""
    path = tmp_path / MEMBERS / "a"
    held: list[HeldLock | None] = []
    with GroupMember(tmp_path, "g", member("a", "T")) as one:
        queue = one.lock_queue("T", 0)
        assert queue is not None
        queue.release()
        with once_before(
            lambda operation, name: (operation, name) == ("unlink", str(path)),
            lambda: held.append(lock(path)),
        ):
            one.__exit__()
    assert held == [None]
    assert not path.exists()


def test_who_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """The others are as before, and the group is free when they have left."""
    first = member("a", "T")
    with GroupMember(tmp_path, "g", first) as one:
        with (
            pytest.raises(UsageError, match="member a of group g allocates queues by S, not by X"),
            GroupMember(tmp_path, "g", member("b", "T", strategy="X")),
        ):
            pass
        assert one.members() == [first]
        assert [path.name for path in (tmp_path / MEMBERS).iterdir()] == ["a"]
        with pytest.raises(OwnershipError, match="others consume for it"):
            lock_group_alone(tmp_path, "g", 0.0)
    with lock_group_alone(tmp_path, "g", 0.0):
        pass


@pytest.mark.parametrize("point", ["open:1", "open:2", "truncate:1", "pwrite:1"])
def test_who_finds_the_disk_full_may_join_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """In the same process, which holds nothing of the first try."""
    (tmp_path / MEMBERS).mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints(f"{point}=ENOSPC"))
        with pytest.raises(NoSpaceError), GroupMember(tmp_path, "g", member("a", "T")):
            pass
    assert open_files(tmp_path) == 0
    assert not [*(tmp_path / MEMBERS).iterdir()]
    with GroupMember(tmp_path, "g", member("a", "T")) as one:
        assert one.members() == [member("a", "T")]


def test_a_queue_has_one_member(tmp_path: Path) -> None:
    """It has it until it lets go; another queue, and the same one of another topic, are free."""
    with (
        GroupMember(tmp_path, "g", member("a", "T")) as one,
        GroupMember(tmp_path, "g", member("b", "T")) as other,
    ):
        held = one.lock_queue("T", 0)
        assert held is not None
        assert other.lock_queue("T", 0) is None
        for topic, queue_id in (("T", 1), ("U", 0)):
            free = other.lock_queue(topic, queue_id)
            assert free is not None
            free.release()
        held.release()
        again = other.lock_queue("T", 0)
        assert again is not None
        again.release()
