"""The stores that a pattern names: what is one, and what is none yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.errors import NotReadyError
from reput.store.stores import find_roots


def test_a_log_or_a_property_file_makes_a_store(tmp_path: Path) -> None:
    """A new broker has its property file first; its log is created at the first start."""
    (tmp_path / "plain-file").touch()
    (tmp_path / "empty").mkdir()
    for pattern in ("*", "nowhere/*"):
        with pytest.raises(NotReadyError, match=r"`stores=` is .* yet"):
            find_roots(f"{tmp_path}/{pattern}")
    for name, files in (("c", ("conf",)), ("a", ("log",)), ("b", ("log", "conf"))):
        root = tmp_path / name
        root.mkdir()
        if "log" in files:
            (root / "commitlog").mkdir()
        if "conf" in files:
            (root / "broker.conf").touch()
    (tmp_path / "empty" / "broker.conf").mkdir()
    assert find_roots(f"{tmp_path}/*") == [tmp_path / name for name in "abc"]
