"""The server's state as a history shows it, by plain rules: what all parts of the checker need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.torture.simulation.clients import HEART_BEAT, PULL, UNREGISTER
from tests.torture.simulation.history import Event, History, Kind, Reply, Request

ENDS = (Kind.KILLED, Kind.POWER_CUT, Kind.STOPPED)
EXPIRY_SECONDS = 120.0
"""A member is removed so long after its last heartbeat, and up to EXPIRY_CHECK_SECONDS later."""
EXPIRY_CHECK_SECONDS = 10.0
INSTANT = 1e-4
"""Two times that differ by less are one."""
Queue = tuple[str, int]
Asked = tuple[int, int]
"""A request: its connection and its opaque."""


@dataclass
class Beat:
    """A member's last heartbeat."""

    number: int
    """The connection."""
    time: float


@dataclass
class State:
    """As of the event that was seen last."""

    requests: dict[Asked, Request] = field(default_factory=dict)
    open: dict[int, bool] = field(default_factory=dict)
    """The connections that the server has; whether it may write to them."""
    cut: set[int] = field(default_factory=set)
    members: dict[str, dict[str, Beat]] = field(default_factory=dict)
    """By group and client."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """The members that the last event has removed: group and client."""
    expired: set[str] = field(default_factory=set)
    """The groups of which the last event shows that members have expired, at some time before."""
    held: dict[Asked, float] = field(default_factory=dict)
    """Waiting pulls, and since when, in their order."""
    bounds: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    lows: dict[Queue, set[int]] = field(default_factory=dict)
    full: list[tuple[float, float]] = field(default_factory=list)
    """The times during which the disk was full: from, and to, exclusive."""

    def of(self, event: Event) -> Request:
        """The request of an event."""
        return self.requests[event.number, event.opaque]

    def member(self, number: int, group: str) -> str | None:
        """The member of a group that speaks over a connection."""
        members = self.members.get(group, {})
        return next((name for name, beat in members.items() if beat.number == number), None)

    def may_have_expired(self, group: str, client: str, now: float) -> bool:
        """Whether a member may be removed already."""
        return now - self.members[group][client].time > EXPIRY_SECONDS - INSTANT

    def written_until(self, now: float, seconds: float, retry: float) -> float:
        """The time up to which all is written, where a write takes up to ``seconds``, and is tried
        again up to ``retry`` seconds after the disk was full."""
        for begin, end in reversed(self.full):
            if end + retry + seconds > now:
                now = begin
        return now - seconds

    def see(self, event: Event) -> None:
        """Follow one event."""
        now, kind, number, opaque, what = event
        self.left = []
        self._expire(now)
        self.expired = {group for group, _ in self.left}
        if kind is Kind.SENT:
            self.requests[number, opaque] = what
        elif kind is Kind.HANDLED:
            self._handled(event, self.of(event), what)
        elif kind is Kind.WROTE and what.is_answer:
            self.held.pop((number, opaque), None)
        elif kind is Kind.LOST:
            self._lost(number)
        elif kind in ENDS:
            self.open, self.members, self.held = {}, {}, {}
        elif kind is Kind.GREW:
            queue, self.bounds[queue] = what[0], what[1]
            self.lows.setdefault(queue, {0}).add(what[1][0])
        elif kind is Kind.FULL:
            self.full.append((now, math.inf))
        elif kind is Kind.FREED:
            self.full[-1] = self.full[-1][0], now
        elif kind is Kind.CUT:
            self.cut.add(number)
        elif kind in (Kind.OPENED, Kind.RESUMED):
            self.open[number] = True
        elif kind is Kind.PAUSED:
            self.open[number] = False

    def _handled(self, event: Event, request: Request, reply: Reply | None) -> None:
        if request.code == HEART_BEAT:
            (data,) = request.body["consumerDataSet"]
            beat = Beat(event.number, event.time)
            self.members.setdefault(data["groupName"], {})[request.client] = beat
        elif request.code == UNREGISTER:
            group, client = str(request.ext["consumerGroup"]), str(request.ext["clientID"])
            if self.members.get(group, {}).pop(client, None):
                self.left.append((group, client))
        elif request.code == PULL and reply is None:
            self.held[event.number, event.opaque] = event.time

    def _lost(self, number: int) -> None:
        self.open.pop(number, None)
        self.held = {asked: since for asked, since in self.held.items() if asked[0] != number}
        self._remove(lambda beat: beat.number == number)

    def _expire(self, now: float) -> None:
        latest = now - EXPIRY_SECONDS - EXPIRY_CHECK_SECONDS - INSTANT
        if latest > 0:
            self._remove(lambda beat: beat.time < latest)

    def _remove(self, is_gone: Callable[[Beat], bool]) -> None:
        for group, members in self.members.items():
            for client in [client for client, beat in members.items() if is_gone(beat)]:
                del members[client]
                self.left.append((group, client))


class Rule(Protocol):
    """A part of the checker."""

    def see(self, event: Event) -> None:
        """Look at an event, which the state has followed."""


@dataclass
class Findings:
    """The violations of a history."""

    history: History
    all: list[str] = field(default_factory=list)

    def add(self, event: Event, text: str) -> None:
        """A violation that an event shows."""
        self.all.append(f"{event.time:.6f} {event.kind} {event.number}/{event.opaque}: {text}")
