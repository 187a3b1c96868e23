"""The rule of committed offsets: none older than the bound after a crash, none lost by a stop."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.torture.simulation.clients import (
    COMMITS,
    MOVED,
    PULL,
    QUERY_OFFSET,
    RESET,
    UPDATE_OFFSET,
)
from tests.torture.simulation.history import Event, Kind, Reply, Request
from tests.torture.simulation.state import Findings, State

KILL_SECONDS = 0.1
"""A commit survives a kill after this time and two of the slowest syncs; docs/serving.md has the
time alone."""
KILL_SYNCS, POWER_CUT_SYNCS = 2, 6
RETRY_SECONDS = 5.0
"""The server tries again after this time where the disk was full; docs/serving.md has it."""
NOT_FOUND, SUBSCRIPTION_NOT_EXIST = 22, 24
Key = tuple[str, int]
"""Group and queue id."""


@dataclass
class _Committed:
    """One queue's offset; None for no offset."""

    at_start: list[int | None] = field(default_factory=lambda: [None])
    """One of these was there when the server started."""
    commits: list[tuple[float, int, bool]] = field(default_factory=list)
    """Since then; whether the server surely took it."""

    def possible(self, before: float) -> list[int | None]:
        """The offsets that may be left, where commits up to a time are durable."""
        kept = self.at_start
        for time, offset, is_sure in self.commits:
            kept = [offset] if is_sure and time <= before else [*kept, offset]
        return kept


@dataclass
class _Reset:
    """A reset that some members have not followed."""

    offset: int
    unaware: set[str]
    unsure: set[str]
    """The members who may have expired before it, or since, when they acted: the server moves
    them, or ignores their commits, if it takes them for members that have not followed."""
    notified: set[str] = field(default_factory=set)

    def doubt(self, client: str) -> None:
        """A client has acted that may have expired: what it did may not count as a member's."""
        for clients in (self.unaware, self.notified):
            if client in clients:
                clients.remove(client)
                self.unsure.add(client)

    def followed(self, client: str) -> None:
        """A member begins at the new offset."""
        for clients in (self.unaware, self.notified, self.unsure):
            clients.discard(client)

    def pulled(self, client: str) -> bool:
        """Whether a client's pull is answered with the new offset."""
        if client in self.unaware:
            self.unaware.remove(client)
            self.notified.add(client)
            return True
        self.notified.discard(client)
        return False


class OffsetsRule:
    """Follows commits and resets, and compares with the answers."""

    def __init__(self, state: State, findings: Findings) -> None:
        self._state, self._findings = state, findings
        self._committed: dict[Key, _Committed] = {}
        self._resets: dict[Key, _Reset] = {}
        self._ended: list[tuple[int, int]] = []
        """The waiting pulls of the queue whose reset is handled now."""
        self.moved: dict[tuple[int, int], int] = {}
        """The offsets to which a reset sends pulls."""

    def see(self, event: Event) -> None:
        """Look at an event."""
        if event.kind is Kind.TAKEN:
            self._taken(event, self._state.of(event))
        elif event.kind is Kind.HANDLED:
            self._handled(event, self._state.of(event), event.what)
        elif event.kind is Kind.KILLED:
            self._crashed(self._written_until(event.time, KILL_SYNCS))
        elif event.kind is Kind.POWER_CUT:
            self._crashed(self._written_until(event.time, POWER_CUT_SYNCS))
        elif event.kind is Kind.STOPPED:
            self._crashed(event.time)

    def _written_until(self, now: float, syncs: int) -> float:
        seconds = KILL_SECONDS + syncs * self._findings.history.slowest_sync
        return self._state.written_until(now, seconds, RETRY_SECONDS)

    def _crashed(self, before: float) -> None:
        for key, committed in self._committed.items():
            self._committed[key] = _Committed(committed.possible(before))
        self._resets.clear()

    def _taken(self, event: Event, request: Request) -> None:
        if request.code == RESET:
            key = _key(request, "group")
            self._ended = [
                asked for asked in self._state.held if _key(self._state.requests[asked]) == key
            ]
            self.moved |= dict.fromkeys(self._ended, int(str(request.ext["offset"])))
        elif request.code == PULL:
            key = _key(request)
            client = self._state.member(event.number, key[0])
            reset = self._resets.get(key)
            if reset is None or client is None:
                return
            if self._state.may_have_expired(key[0], client, event.time):
                reset.doubt(client)
            elif client in reset.unaware:
                self.moved[event.number, event.opaque] = reset.offset

    def _handled(self, event: Event, request: Request, reply: Reply | None) -> None:
        code = None if reply is None else reply.code
        if request.code == PULL and code != SUBSCRIPTION_NOT_EXIST:
            key = _key(request)
            client = self._state.member(event.number, key[0])
            reset = self._resets.get(key)
            if reset is not None and client in reset.unsure:
                # now it shows, unless it may have expired since: who comes back is moved then; who
                # asks for what is not there is sent elsewhere with the same code
                if reply and code == MOVED and reply.ext["nextBeginOffset"] == str(reset.offset):
                    reset.unsure.remove(client)
                    reset.unaware.add(client)
                    self.moved[event.number, event.opaque] = reset.offset
                elif not self._state.may_have_expired(key[0], client, event.time):
                    reset.unsure.remove(client)
            is_moved = client is not None and self._pulled(key, client)
            if not is_moved and int(str(request.ext["sysFlag"])) & COMMITS:
                self._commit(event, key, request)
        elif request.code == UPDATE_OFFSET:
            self._commit(event, _key(request), request)
        elif request.code == QUERY_OFFSET and reply is not None:
            self._asked(event, _key(request), None if code == NOT_FOUND else reply)
        elif request.code == RESET and code == 0:
            key, offset = _key(request, "group"), int(str(request.ext["offset"]))
            self._add(event, key, offset)
            members = {*self._state.members.get(key[0], {})}
            unsure = {m for m in members if self._state.may_have_expired(key[0], m, event.time)}
            self._resets[key] = _Reset(offset, members - unsure, unsure)
            for number, _ in self._ended:
                client = self._state.member(number, key[0])
                if client is not None:
                    self._pulled(key, client)
        if request.code == RESET and code != 0:
            for asked in self._ended:
                del self.moved[asked]

    def _pulled(self, key: Key, client: str) -> bool:
        return key in self._resets and self._resets[key].pulled(client)

    def _commit(self, event: Event, key: Key, request: Request) -> None:
        client, reset = self._state.member(event.number, key[0]), self._resets.get(key)
        is_sure = True
        if reset is not None and client is not None:
            is_awaited = client in reset.unaware | reset.notified
            if is_awaited and not self._state.may_have_expired(key[0], client, event.time):
                return
            is_sure = not is_awaited and client not in reset.unsure
        self._add(event, key, int(str(request.ext["commitOffset"])), is_sure=is_sure)

    def _add(self, event: Event, key: Key, offset: int, *, is_sure: bool = True) -> None:
        commits = self._committed.setdefault(key, _Committed()).commits
        commits.append((event.time, offset, is_sure))

    def _asked(self, event: Event, key: Key, reply: Reply | None) -> None:
        committed = self._committed.setdefault(key, _Committed())
        found = None if reply is None else int(reply.ext["offset"])
        possible = committed.possible(event.time)
        if found not in possible:
            text = f"group and queue {key} have {found}, and not one of {possible}"
            self._findings.add(event, text)
        if not committed.commits:
            committed.at_start = [found]
        client, reset = self._state.member(event.number, key[0]), self._resets.get(key)
        if reset is not None and client is not None:
            if self._state.may_have_expired(key[0], client, event.time):
                reset.doubt(client)
            else:
                reset.followed(client)


def _key(request: Request, group: str = "consumerGroup") -> Key:
    return str(request.ext[group]), int(str(request.ext["queueId"]))
