"""A shell does more to a command than give it arguments: it closes its output and sends Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.childruns import ChildRun
from tests.support.cli import REPUT, ROOT

LONGEST_SECONDS = 120.0
FULL = Path("/dev/full")
COMMANDS = (("status",), ("verify",), ("inspect", "checkpoint"))


def _run(command: list[str], **where: object) -> subprocess.CompletedProcess[str]:
    # with it, which images of containers set, nothing is left to write at a command's end
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, stderr=subprocess.PIPE, text=True, timeout=LONGEST_SECONDS, check=False, cwd=ROOT,
        env=environment, **where,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, which children inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_full_standard_output(golden: Callable[[str], Path]) -> None:
    """One line that says so, exit code 1."""
    store = str(golden("plain"))
    for command in COMMANDS:
        with FULL.open("w") as full:
            done = _run([*REPUT, *command, store], stdout=full)
        line = "reput: error: cannot write to standard output: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, line)


def test_a_reader_that_went_away(golden: Callable[[str], Path]) -> None:
    """As with ``| head -1``: nothing more to say."""
    store = str(golden("plain"))
    for command in COMMANDS:
        ours, theirs = os.pipe()
        os.close(ours)
        try:
            done = _run([*REPUT, *command, store], stdout=theirs)
        finally:
            os.close(theirs)
        assert (done.returncode, done.stderr) == (1, "")


def test_a_standard_output_that_is_closed(golden: Callable[[str], Path]) -> None:
    """No file of ours takes its place, and the command does what it does."""
    done = _run(["sh", "-c", 'exec "$@" >&-', "sh", *REPUT, "status", str(golden("plain"))])
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_the_packages_load(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Sent when numpy is in the process, long before a signal can stop a batch."""
    command = [*REPUT, "run", golden("plain"), "--output", tmp_path / "output"]
    with ChildRun(tmp_path / "log", command) as run:
        maps = Path(f"/proc/{run.process.pid}/maps")
        run.wait_until(lambda: "numpy" in maps.read_text())
        run.process.send_signal(signal.SIGINT)
        assert (run.process.wait(LONGEST_SECONDS), run.stderr) == (130, "")
    assert not (tmp_path / "output").exists()


def test_a_ctrl_c_that_an_import_swallowed(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """It ends the run before anything is started."""
    program = (
        "import os, signal, sys\n"
        "from reput import __main__ as command, cli\n"
        "def swallow():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT)\n"
        "    except SystemExit: pass\n"
        "    run()\n"
        "run, cli.main = cli.main, swallow\n"
        "command.main()\n"
    )
    arguments = ("run", str(golden("plain")), "--output", str(tmp_path / "output"))
    done = _run([sys.executable, "-c", program, *arguments])
    assert (done.returncode, done.stderr) == (130, "")
    assert not (tmp_path / "output").exists()
