"""A run builds the indexes that the store's settings ask for, unless its own say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.state.built import settings_of
from streaming.config import DispatcherConfig
from streaming.indexes import Indexes


@pytest.mark.parametrize(
    ("conf", "index", "built"),
    [
        ("", None, True),
        ("messageIndexEnable=false\n", None, False),
        ("messageIndexEnable=false\n", True, True),
        ("indexFileWriteEnable=false\nindexRocksDBEnable=true\n", None, False),
        ("indexFileWriteEnable=false\n", True, True),
        ("messageIndexEnable=true\n", False, False),
    ],
)
def test_index_files_follow_two_settings(
    conf: str, index: bool | None, built: bool, tmp_path: Path
) -> None:
    """RocketMQ 5.4 and newer write none where the index is in RocksDB alone."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "broker.conf").write_text(conf)
    config = DispatcherConfig(tmp_path, tmp_path, index=index)
    settings = settings_of(tmp_path, config.given_settings(), config.flags)
    assert Indexes.of(config, settings).wanted.index == built
