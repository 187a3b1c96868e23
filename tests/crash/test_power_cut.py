"""A few power cuts on a real kernel; ``make power-cut`` makes a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.powercut.machine import FILE_SYSTEMS, KINDS, Case, boot, is_installed


@pytest.mark.extended
@pytest.mark.skipif(
    not is_installed(), reason="no user-mode Linux: deploy/install-uml.sh installs it or says why"
)
def test_what_was_acknowledged_is_there_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    """The next start builds the rest again, byte for byte as RocketMQ did."""
    file_system = FILE_SYSTEMS[seed % len(FILE_SYSTEMS)]
    cases = [Case(number, "cut", kind, file_system) for number, kind in enumerate(KINDS)]
    results = list(boot(cases, seed, tmp_path, images_per_run=1))
    assert [result["faults"] for result in results] == [[]] * len(KINDS)
