"""The rules of answers: one for each request, in time, with what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.torture.simulation.clients import (
    FOUND,
    HEART_BEAT,
    LOCK,
    MEMBERS,
    MIN_OFFSET,
    MOVED,
    NOTICE,
    PULL,
    QUERY_OFFSET,
    RESET,
    SUBSCRIBES,
    SUSPENDS,
    UNLOCK,
    UNREGISTER,
    UPDATE_OFFSET,
)
from tests.torture.simulation.history import Event, Kind, Reply, Request
from tests.torture.simulation.offsets import SUBSCRIPTION_NOT_EXIST, OffsetsRule
from tests.torture.simulation.state import ENDS, EXPIRY_SECONDS, INSTANT, Asked, Findings, State
from tests.torture.simulation.store import body_of

PULL_NOT_FOUND, NO_GROUP, NO_MEMBERS = 19, 26, 1
OUTSIDE = 1
"""A reset beyond a queue's bounds."""
CODES = {
    HEART_BEAT: {0}, UPDATE_OFFSET: {0}, LOCK: {0}, UNLOCK: {0}, UNREGISTER: {0}, MIN_OFFSET: {0},
    QUERY_OFFSET: {0, 22}, MEMBERS: {0, NO_MEMBERS}, RESET: {0, OUTSIDE, NO_GROUP},
    PULL: {FOUND, PULL_NOT_FOUND, MOVED, SUBSCRIPTION_NOT_EXIST},
}  # fmt: skip
Membership = tuple[str, str]
"""Group and client."""
CHANGING = {Kind.HANDLED, Kind.LOST, *ENDS}
"""Events that may change members, beside the passing of time."""
WAKE_SECONDS = 0.5
"""A waiting pull is answered this soon after messages have arrived."""


class AnswersRule:
    """No request is answered twice or unasked, and none is left without its answer."""

    def __init__(self, state: State, findings: Findings) -> None:
        self._state, self._findings = state, findings
        self._taken: dict[int, int] = {}
        """The last request that was taken from each connection."""
        self._answered: set[Asked] = set()
        self._owed: dict[Asked, tuple[float, Reply]] = {}
        """Answers that were made, and not written yet."""

    def see(self, event: Event) -> None:
        """Look at an event."""
        asked = event.number, event.opaque
        for owed, (time, _) in self._owed.items():
            if event.time > time + INSTANT:
                self._findings.add(event, f"the answer to {owed} was made and is not written")
                self._owed.clear()
                break
        if event.kind is Kind.TAKEN:
            if event.opaque <= self._taken.get(event.number, 0):
                self._findings.add(event, "it is taken twice, or too late")
            self._taken[event.number] = event.opaque
        elif event.kind is Kind.HANDLED and event.what is not None:
            request = self._state.of(event)
            if event.what.code not in CODES[request.code]:
                self._findings.add(event, f"{request} is answered with {event.what}")
            if not request.is_one_way:
                self._owed[asked] = event.time, event.what
        elif event.kind is Kind.WROTE and event.what.is_answer:
            self._wrote(event, asked)
        elif event.kind is Kind.LOST:
            self._owed = {key: owed for key, owed in self._owed.items() if key[0] != event.number}
        elif event.kind in (Kind.KILLED, Kind.POWER_CUT):
            self._owed.clear()
        elif event.kind is Kind.QUIET:
            self._quiet(event)

    def _wrote(self, event: Event, asked: Asked) -> None:
        request = self._state.requests.get(asked)
        if asked in self._answered:
            self._findings.add(event, f"{request} is answered twice")
        if request is None or request.is_one_way or self._taken.get(asked[0], 0) < asked[1]:
            self._findings.add(event, f"nobody has asked for the answer {event.what}")
        self._answered.add(asked)
        _, made = self._owed.pop(asked, (0, event.what))
        if made._replace(is_answer=True) != event.what:
            self._findings.add(event, f"{made} was written as {event.what}")

    def _quiet(self, event: Event) -> None:
        for asked, request in self._state.requests.items():
            if asked[0] in self._state.open and asked[0] not in self._state.cut:
                is_taken = self._taken.get(asked[0], 0) >= asked[1]
                if not is_taken or not (request.is_one_way or asked in self._answered):
                    self._findings.add(event, f"{asked}, {request}, has no answer")


class PullsRule:
    """Answers to pulls fit what was asked; waiting ones end in time."""

    def __init__(self, state: State, findings: Findings, offsets: OffsetsRule) -> None:
        self._state, self._findings, self._offsets = state, findings, offsets
        self._deadlines: dict[Asked, float] = {}
        """By each pull that waits: the end of the time that it asks for."""
        self._due: dict[Asked, float] = {}
        """By each of those that find messages."""

    def see(self, event: Event) -> None:
        """Look at an event."""
        state, now = self._state, event.time
        for asked in [asked for asked in self._deadlines if asked not in state.held]:
            if event.kind is Kind.WROTE and asked == (event.number, event.opaque):
                self._check(event, state.requests[asked], event.what)
            del self._deadlines[asked]
            self._due.pop(asked, None)
        for deadlines in (self._deadlines, self._due):
            for asked, deadline in deadlines.items():
                if now > deadline + INSTANT:
                    self._findings.add(event, f"the pull {asked} waits beyond {deadline:.6f}")
                    deadlines[asked] = float("inf")
        if event.kind is Kind.HANDLED and state.of(event).code == PULL:
            request = state.of(event)
            if event.what is not None:
                self._check(event, request, event.what)
            elif not _number(request, "sysFlag") & SUSPENDS:
                self._findings.add(event, f"{request} waits")
            else:
                self._deadlines[event.number, event.opaque] = self._latest(event, request)
        elif event.kind is Kind.GREW:
            self._wake(now, lambda _, request: _queue(request) == event.what[0])
        elif event.kind is Kind.RESUMED:
            self._wake(now, lambda asked, _: asked[0] == event.number)
        elif event.kind is Kind.PAUSED:
            self._due = {asked: due for asked, due in self._due.items() if asked[0] != event.number}

    def _latest(self, event: Event, request: Request) -> float:
        return event.time + _number(request, "suspendTimeoutMillis") / 1000

    def _wake(self, now: float, is_meant: Callable[[Asked, Request], bool]) -> None:
        """Waiting pulls that find something are answered soon, if their clients read."""
        for asked in self._deadlines:
            request = self._state.requests[asked]
            low, high = self._state.bounds.get(_queue(request), (0, 0))
            is_found = low <= _number(request, "queueOffset") < high
            if is_meant(asked, request) and is_found and self._state.open[asked[0]]:
                self._due.setdefault(asked, now + WAKE_SECONDS)

    def _check(self, event: Event, request: Request, reply: Reply) -> None:
        """An answer fits the offset that was asked for."""
        if reply.code == SUBSCRIPTION_NOT_EXIST:
            group = str(request.ext["consumerGroup"])
            client = self._state.member(event.number, group)
            is_known = client and not self._state.may_have_expired(group, client, event.time)
            if _number(request, "sysFlag") & SUBSCRIBES or is_known:
                self._findings.add(event, f"{request} is of an unknown member")
            return
        asked, following = _number(request, "queueOffset"), int(reply.ext["nextBeginOffset"])
        low, high = self._state.bounds.get(_queue(request), (0, 0))
        moved = self._offsets.moved.pop((event.number, event.opaque), None)
        if moved is not None:
            is_right = reply.code == MOVED and following == moved
        elif reply.code == FOUND:
            messages = range(asked, following)
            body = b"".join(body_of(*_queue(request), offset) for offset in messages)
            is_right = (
                reply.body == body
                and 0 < len(messages) <= _number(request, "maxMsgNums")
                and following <= high
            )
        elif reply.code == PULL_NOT_FOUND:
            is_right = following == asked == high
        else:
            is_right = following == (high if asked > high else low) and not low <= asked <= high
        if not is_right:
            self._findings.add(event, f"{request}, of {low} to {high}, got {reply}; moved={moved}")


class BoundsRule:
    """Least offsets, and what resets say of them."""

    def __init__(self, state: State, findings: Findings) -> None:
        self._state, self._findings = state, findings

    def see(self, event: Event) -> None:
        """Look at an event."""
        if event.kind is not Kind.HANDLED:
            return
        request, reply = self._state.of(event), event.what
        if request.code == MIN_OFFSET:
            low, _ = self._state.bounds.get(_queue(request), (0, 0))
            if int(reply.ext["offset"]) != low:
                self._findings.add(event, f"the least offset is {low}, and not {reply}")
        elif request.code == RESET and reply.code == OUTSIDE:
            low, high = self._state.bounds.get(_queue(request), (0, 0))
            if low <= _number(request, "offset") <= high:
                self._findings.add(event, f"{request}, of {low} to {high}, got {reply}")


class MembersRule:
    """Lists have the members of a group, who are told of each change."""

    NOTICE_SECONDS = 1.05
    """The longest time from a change to its notice."""

    def __init__(self, state: State, findings: Findings) -> None:
        self._state, self._findings = state, findings
        self._known: dict[Membership, float] = {}
        """The last heartbeat of each, as of the last event."""
        self._told: dict[Membership, float] = {}
        """The last notice to each."""
        self._untold: dict[Membership, float] = {}
        """The members that are to be told, and since when."""

    def see(self, event: Event) -> None:
        """Look at an event."""
        state, now = self._state, event.time
        if event.kind is Kind.HANDLED and state.of(event).code == MEMBERS:
            self._listed(event, str(state.of(event).ext["consumerGroup"]), event.what)
        if event.kind is Kind.WROTE and event.what.code == NOTICE and not event.what.is_answer:
            group = event.what.ext["consumerGroup"]
            client = state.member(event.number, group)
            if client is not None:
                self._told[group, client] = now
                self._untold.pop((group, client), None)
        if self._untold:
            self._await(event)
        if event.kind not in CHANGING and not state.left:
            return
        members = {
            (group, client): beat.time
            for group, beats in state.members.items()
            for client, beat in beats.items()
        }
        for changed in members.keys() ^ self._known.keys():
            self._changed(changed, [m for m in members if m[0] == changed[0]], now)
        self._known = members

    def _await(self, event: Event) -> None:
        """Look whether somebody waits too long; who has left, or may have expired, is not told."""
        state, now = self._state, event.time
        self._untold = {
            (group, client): since
            for (group, client), since in self._untold.items()
            if client in state.members.get(group, ())
            and not state.may_have_expired(group, client, now)
        }
        for member, since in self._untold.items():
            if now > since + self.NOTICE_SECONDS:
                text = f"{member} was not told of a change at {since:.6f}"
                self._findings.add(event, text)
                self._untold[member] = float("inf")

    def _changed(self, changed: Membership, others: list[Membership], now: float) -> None:
        """Somebody has come or left: the others are to be told, or were told when it expired.

        Nothing shows the time at which a member expires. One that may have expired before it leaves
        has left already if so, and the notice of that is the only one.
        """
        silent_since = self._known.get(changed, now) + EXPIRY_SECONDS - INSTANT
        for other in others:
            if silent_since > now or self._told.get(other, 0.0) < silent_since:
                self._untold.setdefault(other, now)

    def _listed(self, event: Event, group: str, reply: Reply) -> None:
        members = self._state.members.get(group, {})
        certain = {m for m in members if not self._state.may_have_expired(group, m, event.time)}
        found = _json(reply)["consumerIdList"] if reply.code == 0 else []
        if found != sorted(found) or not certain <= {*found} <= {*members}:
            self._findings.add(event, f"group {group} has {sorted(members)}, and not {found}")


def _json(reply: Reply) -> dict[str, list[str]]:
    return dict(json.loads(reply.body))


def _number(request: Request, name: str) -> int:
    return int(str(request.ext[name]))


def _queue(request: Request) -> tuple[str, int]:
    return str(request.ext["topic"]), _number(request, "queueId")
