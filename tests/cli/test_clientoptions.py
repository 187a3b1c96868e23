"""The lines that say where clients find a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.cli.clientoptions import note_overlay, note_ready
from reput.serving.config import ServerConfig
from reput.serving.stores import BrokerIdentity


@pytest.mark.parametrize("configured", [0, 10911])
def test_the_ports_are_those_that_are_bound(
    configured: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each store and each overlay has its own, of which the configuration has at most one."""
    config, identity = ServerConfig("127.0.0.1", configured), BrokerIdentity("B", "C")
    note_ready(config, tmp_path, identity, 4711)
    note_overlay(config, tmp_path, identity, 4712)
    store, overlay = capsys.readouterr().err.splitlines()
    assert f"serving {tmp_path} as broker B at 127.0.0.1:4711" in store
    assert f"serving {tmp_path / 'overlay'} as broker B-reput at 127.0.0.1:4712" in overlay
