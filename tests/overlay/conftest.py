"""A broker of each release, in whose name the tests make records. Tests close what they open."""

from __future__ import annotations

import pytest

from reput.overlay.records.release import RELEASES, Writer
from tests.support.closedfiles import files_are_closed

__all__ = ["files_are_closed", "writer"]

HOST = ("10.0.0.9", 10912)


@pytest.fixture(params=[*RELEASES])
def writer(request: pytest.FixtureRequest) -> Writer:
    """Run the test with a broker of every release."""
    return Writer(RELEASES[request.param], HOST)
