"""The members of a consumer group that share an output as processes of one machine.

::

    OUTPUT/reput/groups/GROUP/alone.lock           shared by all members, or held by one for itself
    OUTPUT/reput/groups/GROUP/members/CLIENT_ID    held by the member; its topics and its strategy
    OUTPUT/reput/groups/GROUP/queues/TOPIC/ID      held by the member that consumes the queue

Each file is a lock that the kernel releases when its holder ends. So a member that is killed has
left at once, and no two members have the same queue, even if they disagree about who the members
are. A member consumes a queue only while it holds its lock, and commits before it releases it; the
next holder reads the committed offset after it got the lock.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from reput.store import fsops, jsontext
from reput.store.errors import OwnershipError, UsageError
from reput.store.filelocks import HeldLock, lock, read_held
from reput.store.files import (
    GROUP_LOCK_FILE,
    GROUPS_DIRECTORY,
    HELD_QUEUES_DIRECTORY,
    MEMBERS_DIRECTORY,
)
from reput.store.queue.consumequeue import topic_directory

PATIENCE_SECONDS = 1.0
"""Time to wait for a member's lock, since others hold it for an instant to see who lives."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the others must know it, to share the same queues in the same way."""

    client_id: str
    topics: frozenset[str]
    strategy: str
    """The name of the class that allocates queues."""


def lock_group_alone(output: Path, group: str, patience: float) -> HeldLock:
    """Reserve a group for a process that consumes all queues. Raises OwnershipError if others still
    consume for it after ``patience`` seconds."""
    directory = output / GROUPS_DIRECTORY / group
    fsops.make_directories(directory, output)
    return _entered(directory, group, shared=False, patience=patience)


class GroupMember:
    """This process as a member of a group, in a ``with`` block. Methods raise OutputError."""

    def __init__(self, output: Path, group: str, member: Member) -> None:
        """Raises UsageError for a client id that cannot name a file."""
        if topic_directory(member.client_id.encode()) is None:
            raise UsageError(
                f"the client id {member.client_id!r} cannot be used; give one of up to 255 bytes "
                "without slashes and control characters, or none"
            )
        self._output, self._group = output, group
        self._directory = output / GROUPS_DIRECTORY / group
        self._members = self._directory / MEMBERS_DIRECTORY
        self._member = member
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Join. Raises OwnershipError if the client id is taken or a process has the group alone,
        UsageError if a member allocates queues by another strategy."""
        fsops.make_directories(self._members, self._output)
        with ExitStack() as resources:
            resources.enter_context(
                _entered(self._directory, self._group, shared=True, patience=0.0)
            )
            resources.enter_context(self._registered())
            for other in self.members():
                # of two that join at once, at least one sees the other
                if other.strategy != self._member.strategy:
                    raise UsageError(
                        f"member {other.client_id} of group {self._group} allocates queues by "
                        f"{other.strategy}, not by {self._member.strategy}; use one strategy in "
                        "all members, or some queues would have none"
                    )
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    def _registered(self) -> ExitStack:
        """Write the member's own file and hold its lock; the result removes the file when it is
        closed."""
        path = self._members / self._member.client_id
        while True:
            member_lock = lock(path, patience=PATIENCE_SECONDS)
            if member_lock is None:
                raise OwnershipError(
                    f"group {self._group} has a member {self._member.client_id} already, which "
                    f"holds {path}; give each member an id of its own",
                    path=path,
                )
            if _is_at(member_lock.fd, path):
                break
            # another member has removed the new file, as if it were that of a dead member
            member_lock.release()
        fields = {"topics": sorted(self._member.topics), "strategy": self._member.strategy}
        with ExitStack() as registered:
            registered.enter_context(member_lock)
            registered.callback(fsops.unlink, path)
            fsops.truncate(member_lock.fd, 0, path)
            fsops.pwrite(member_lock.fd, json.dumps(fields).encode(), 0, path)
            return registered.pop_all()

    def members(self) -> list[Member]:
        """Return the living members, this one included, in no order."""
        members = [self._member]
        for name in os.listdir(self._members):  # noqa: PTH208
            if name == self._member.client_id:
                continue
            data = read_held(self._members / name)
            try:
                fields = jsontext.parse(data or b"")
                members.append(Member(name, frozenset(fields["topics"]), fields["strategy"]))
            except (ValueError, KeyError, TypeError):
                continue  # it has not joined yet, or it is dead
        return members

    def lock_queue(self, topic: str, queue_id: int) -> HeldLock | None:
        """Return the lock with which this member may consume a queue; None while another member has
        it."""
        path = self._directory / HELD_QUEUES_DIRECTORY / topic / str(queue_id)
        if not path.exists():
            fsops.make_directories(path.parent, self._output)
        return lock(path)


def _entered(directory: Path, group: str, *, shared: bool, patience: float) -> HeldLock:
    path = directory / GROUP_LOCK_FILE
    group_lock = lock(path, shared=shared, patience=patience)
    if group_lock is None:
        who = "a process that reads all queues has it" if shared else "others consume for it"
        raise OwnershipError(
            f"cannot consume for group {group}: {who}, as {path} shows; stop them, or use another "
            "group",
            path=path,
        )
    return group_lock


def _is_at(fd: int, path: Path) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
