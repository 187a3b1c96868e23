"""Power cuts of user-mode Linux, a real kernel in a process; ``deploy/install-uml.sh`` installs it.

The cases of one file system follow each other in one boot, and both file systems' boots go on at
the same time.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from reput.store.errors import UsageError
from tests.crash.powercut import machine
from tests.crash.powercut.machine import FILE_SYSTEMS, boot, is_installed
from tests.torture.cases import BENCHES, Case, Kind

CASES_PER_BOOT = 50
IMAGES_PER_RUN = 30
"""Images that are checked of a run with recorded writes, about."""
Results = Generator[dict[str, Any], None, None]


def _results(first: int, stack: ExitStack, case: Case) -> Results:
    """The result of each case from ``first`` on that has the same file system."""
    if not is_installed():
        raise UsageError("no user-mode Linux: deploy/install-uml.sh installs it, or says why not")

    def boots() -> Results:
        numbers = itertools.count(first, len(FILE_SYSTEMS))
        while True:
            cases = [machine.Case.of(next(numbers)) for _ in range(CASES_PER_BOOT)]
            # not in memory: the guest has a /dev/shm of its own
            with tempfile.TemporaryDirectory(prefix="reput-power-cut-") as directory:
                yield from boot(cases, case.seed, Path(directory), IMAGES_PER_RUN)

    return stack.enter_context(closing(boots()))


def _run(case: Case) -> Counter[str]:
    """Cut the power once; return the number of images, by file system, disturbance and workload."""
    kind = machine.Case.of(case.number)
    own = replace(case, directory=case.directory / kind.file_system)
    try:
        result = next(BENCHES.find(own, partial(_results, case.number)))
    except RuntimeError:
        BENCHES.let_go(own.directory)  # its guest has ended
        raise
    assert result["number"] == case.number
    assert not result["faults"], result["faults"]
    return Counter({f"{kind.file_system} {kind.mode} {kind.kind}": result["images"]})


KIND = Kind("power cut", _run, 1_000, on_request=True)
"""The sample is tests/crash/test_power_cut.py."""
