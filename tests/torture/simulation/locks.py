"""The rule of locks: no queue has two owners, as the server may know."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from tests.torture.simulation.clients import LOCK, UNLOCK, UNREGISTER
from tests.torture.simulation.history import Event, Kind, Reply, Request
from tests.torture.simulation.state import Findings, State

LOCK_SECONDS, RELEASE_SECONDS, RESTORED_SECONDS = 60.0, 3.0, 30.0
FILE_SECONDS, FILE_SYNCS = 1.1, 6
"""A lock's owner is known after a crash if it has been the owner for this time and these syncs."""
ABOUT = 0.01
Key = tuple[str, int]
"""Group and queue id."""


@dataclass(frozen=True)
class _Lock:
    """A queue's lock, or what may be one."""

    client: str | None
    """None where its owner, if any, is unknown."""
    number: int | None
    """The connection over which it was taken; None for one of before the start."""
    since: float
    """The owner has not changed since then."""
    ends: float


class LocksRule:
    """Follows grants, and compares with the answers."""

    def __init__(self, state: State, findings: Findings) -> None:
        self._state, self._findings = state, findings
        self._locks: dict[Key, _Lock] = {}
        self._freed: dict[Key, float] = {}
        """Queues that were given up, and when."""
        self._kept: dict[Key, _Lock] | None = None
        """The locks when the server was told to end."""

    def see(self, event: Event) -> None:
        """Look at an event."""
        now, kind = event.time, event.kind
        if kind is Kind.HANDLED:
            request = self._state.of(event)
            if request.code == LOCK:
                self._locked(event, request, event.what)
            elif request.code == UNLOCK:
                self._unlocked(now, request)
            elif request.code == UNREGISTER:
                self._unregistered(now, request)
        if kind is Kind.LOST or self._state.left:
            self._leave(now)
        if kind is Kind.STOPPING:
            self._kept = dict(self._locks)
        elif kind is Kind.STOPPED:
            self._restore(now, now)
        elif kind in (Kind.KILLED, Kind.POWER_CUT):
            seconds = FILE_SECONDS + FILE_SYNCS * self._findings.history.slowest_sync
            self._restore(now, self._state.written_until(now, seconds, seconds))
        elif kind is Kind.STARTED:
            ends = now + RESTORED_SECONDS
            self._locks = {
                key: replace(lock, number=None, since=now, ends=ends)
                for key, lock in self._locks.items()
            }

    def _locked(self, event: Event, request: Request, reply: Reply) -> None:
        now, client = event.time, request.client
        granted = {queue["queueId"] for queue in json.loads(reply.body)["lockOKMQSet"]}
        for key in _keys(request):
            lock = self._locks.get(key)
            is_own = lock is not None and lock.client == client
            if key[1] in granted:
                if lock is not None and not is_own and self._holds(key[0], lock, now):
                    self._findings.add(event, f"{key} is given to {client}: {lock}")
                is_renewed = lock is not None and is_own and self._holds(key[0], lock, now)
                since = lock.since if lock is not None and is_renewed else now
                ends = now + LOCK_SECONDS
                self._locks[key] = _Lock(client, event.number, since, ends)
            elif lock is None or is_own or now > lock.ends + ABOUT:
                self._findings.add(event, f"{key} is not given to {client}: {lock}")

    def _holds(self, group: str, lock: _Lock, now: float) -> bool:
        """Whether a lock surely has its owner."""
        if lock.client is None or now >= lock.ends - ABOUT:
            return False
        members = self._state.members.get(group, {})
        if lock.number in self._state.open or lock.client not in members:
            return True
        return not self._state.may_have_expired(group, lock.client, now)

    def _unlocked(self, now: float, request: Request) -> None:
        for key in _keys(request):
            lock = self._locks.get(key)
            if lock is not None and lock.client == request.client:
                del self._locks[key]
                self._freed[key] = now

    def _unregistered(self, now: float, request: Request) -> None:
        """End the locks of a client that says that it leaves, also where it is no member."""
        for key, lock in self._locks.items():
            if (key[0], lock.client) == (request.ext["consumerGroup"], request.client):
                self._locks[key] = replace(lock, ends=min(lock.ends, now))

    def _leave(self, now: float) -> None:
        """End the locks of members that left, and of lost connections whose owner is no member."""
        state = self._state
        for key, lock in self._locks.items():
            group, client = key[0], lock.client
            is_open = lock.number in state.open
            has_left = (group, client) in state.left
            is_forgotten = lock.number is not None and client not in state.members.get(group, {})
            if client is None:
                continue
            if has_left and group in state.expired:
                # it may have left before, and the lock with it
                self._locks[key] = replace(lock, client=None)
            elif not is_open and (has_left or is_forgotten):
                self._locks[key] = replace(lock, ends=min(lock.ends, now + RELEASE_SECONDS))

    def _restore(self, now: float, written: float) -> None:
        """Keep what the file must have: the owners that have not changed since it was written."""
        locks = self._locks if self._kept is None else self._kept
        self._kept = None
        unknown = _Lock(None, None, now, now)
        self._locks = {
            key: lock if lock.since <= written and self._holds(key[0], lock, now) else unknown
            for key, lock in locks.items()
        } | {
            key: unknown for key, freed in self._freed.items()
            if key not in locks and freed > written
        }  # fmt: skip


def _keys(request: Request) -> list[Key]:
    group = request.body["consumerGroup"]
    return [(group, queue["queueId"]) for queue in request.body["mqSet"]]
