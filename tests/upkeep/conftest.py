"""Fixtures that tests of upkeep share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_store import LiveStore


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveStore]:
    """Four messages of topic T, all dispatched."""
    with LiveStore(tmp_path) as store:
        store.append_tags(b"A", b"B", b"C", b"D")
        store.dispatch()
        yield store
