"""A test leaves no file of its own directory open, in folders whose conftest imports this.

A process that runs for months must not lose a descriptor at each batch, and no result of a call
shows whether it does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import open_paths


@pytest.fixture(autouse=True)
def files_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """It begins before all other fixtures of a test and ends after them."""
    directory: Path | None = None
    if "tmp_path" in request.fixturenames:
        directory = request.getfixturevalue("tmp_path")
    yield
    if directory is not None and open_paths(directory):
        # the traceback of an expected error keeps what its functions had
        gc.collect()
        assert open_paths(directory) == []
