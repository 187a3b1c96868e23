"""A golden store, and a server of it that tests without state of their own share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.golden import unpack_golden
from tests.support.remoting import served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Golden store plain."""
    return unpack_golden("plain", tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server of a store of its own: tests start others on ``store``."""
    with served(unpack_golden("plain", tmp_path_factory.mktemp("served"))) as found:
        yield found
