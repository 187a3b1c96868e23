"""The process that answers scrapes may hang: the run goes on, and ends."""

from __future__ import annotations

import fcntl
import struct
import termios
from pathlib import Path

import pytest

from reput.upkeep.watch import metricsserver, pageserver
from tests.support.processes import became
from tests.upkeep.test_metrics import Scene, scraped

PAGE = b"#" * 5000
FRAME = pageserver.LENGTH_BYTES + len(PAGE)
SECONDS = 60
HANGS = "import signal\nprint(flush=True)\nsignal.pause()\n"


def a_page_waits(pipe: int) -> bool:
    """Whether a pipe that nobody reads has a part of a page: the rest has no room."""
    (unread,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return bool(unread % FRAME)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_serving_process_that_hangs_keeps_nothing_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    """A page waits for room when it is killed: by the end of the run, or by another, and then the
    next one answers."""
    hanging = tmp_path / "hangs.py"
    hanging.write_text(HANGS)
    server = Scene(tmp_path).server
    with monkeypatch.context() as patched:
        patched.setattr(pageserver, "__file__", str(hanging))
        patched.setattr(metricsserver, "LOOK_SECONDS", 0)
        patched.setattr(server, "page", lambda: PAGE)
        with server:
            process = server._process
            assert became(lambda: a_page_waits(server._pages.fileno()), SECONDS)
            patched.undo()
            if is_replaced:
                process.kill()
                assert "reput_log_end_bytes" in scraped(f"http://127.0.0.1:{server.port}/metrics")
    assert process.poll() is not None
