"""The simulation as a kind of faults: a case is a history."""

from __future__ import annotations

from collections import Counter

from tests.torture.cases import Case, Kind
from tests.torture.simulation.checker import violations
from tests.torture.simulation.history import Kind as Event
from tests.torture.simulation.world import play

SHOWN = 5
FAULTS = (Event.KILLED, Event.POWER_CUT, Event.CUT, Event.STOPPING, Event.FULL)


def run(case: Case) -> Counter[str]:
    """Play and check one history; its faults."""
    world = play(case.directory, case.rng())
    found = violations(world.history)
    if found or world.place.failures:
        lines = [*map(repr, world.place.failures), *found]
        raise AssertionError("\n".join([f"{len(lines)} violations:", *lines[:SHOWN]]))
    return Counter(str(event.kind) for event in world.history.events if event.kind in FAULTS)


# docs/reliability.md says how many histories of other seeds have passed since the last fault
KIND = Kind("simulation", run, cases=100_000, sample=300, sample_seed=395)
