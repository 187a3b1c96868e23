"""``reput overlay handover``, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.overlay.overlay import Overlay
from reput.store.config import read_store_settings
from tests.support.cli import Call, json_object
from tests.support.delivering import STORES
from tests.support.golden import unpack_golden

LATER = 1 << 42


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A stopped broker's store, in which an overlay has delivered two messages."""
    root = unpack_golden("g533", tmp_path)
    (root / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\n")
    settings = read_store_settings(root)
    with Overlay(settings, root, STORES["g533"], now_ms=lambda: LATER) as overlay, overlay._lock:
        assert overlay._lock.wait_for(lambda: not overlay._waiting.due(LATER), 60)
    return root


def test_lines_and_fields(call: Call, base: Path, tmp_path: Path) -> None:
    done = call("overlay", "handover", base, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 messages delivered or ended by the overlay; the broker repeats 0 of them",
        f"{tmp_path}/new/README.txt says what to put where",
    ]
    again = json_object(call("overlay", "handover", base, tmp_path / "json", "--json"))
    assert again["files"] == ["config/delayOffset.json", "config/timercheck"]
    assert again["done"] == {"level delivered": 1, "timer delivered": 1}
    assert again["repeated"] == []


def test_wrong_calls(call: Call, base: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    words = ("overlay", "handover")
    full = call(*words, base, base.parent)
    assert (full.returncode, "is not empty; give another directory" in full.stderr) == (2, True)
    elsewhere = call(*words, tmp_path / "empty", tmp_path / "new", "--store", base)
    assert (elsewhere.returncode, "has no overlay" in elsewhere.stderr) == (2, True)
