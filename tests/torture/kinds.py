"""All kinds of faults, by the names that ``make torture KIND=`` takes."""

from __future__ import annotations

from tests.torture import (
    clock,
    crashimages,
    derivedrot,
    dispatchermachine,
    interrupted,
    logmachine,
    logrot,
    overlaycuts,
    powercut,
    races,
    shuffledappend,
    sparkcheckpoint,
    sparkruns,
    torntail,
)
from tests.torture.simulation.kind import KIND as SIMULATION

KINDS = {
    kind.option: kind
    for kind in (
        torntail.KIND, logrot.KIND, derivedrot.KIND, sparkcheckpoint.KIND,
        interrupted.FAILING_WRITES, interrupted.KILLS, races.KIND, shuffledappend.KIND, clock.KIND,
        logmachine.KIND, dispatchermachine.KIND, sparkruns.SPARK_KILLS, sparkruns.JVM_CALLS,
        crashimages.KIND, powercut.KIND, overlaycuts.KIND, SIMULATION,
    )
}  # fmt: skip
