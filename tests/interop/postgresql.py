"""A real PostgreSQL server for tests, of the binaries that Debian's package installs.

Invariants: bound to 127.0.0.1 on a free port, with one database and no password; everything it
writes is in a directory of its own; it ends with these tests, also where they are killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.harnessjvm import lines_of
from tests.interop.maven import HarnessError

BINARIES = Path("/usr/lib/postgresql")
READY_SECONDS = 60.0
STOP_SECONDS = 60.0
USER = "postgres"
_READY = "ready to accept connections"


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Start one; its URI for SQLAlchemy. Skips the calling test where the server or its driver is
    missing."""
    pytest.importorskip("psycopg2", reason="needs psycopg2 to use a catalog in PostgreSQL")
    found = sorted(BINARIES.glob("*/bin/postgres"))
    if not found:
        pytest.skip("needs PostgreSQL's server to run a catalog in it")
    # below a test's own directory it could not reach its files as another user
    with tempfile.TemporaryDirectory(prefix="reput-postgresql-") as home:
        as_user = _as_user(home)
        make = [*as_user, str(found[-1].with_name("initdb")), "-D", home, "-U", USER, "-A", "trust"]
        subprocess.run([*make, "--no-sync"], check=True, stdout=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        process = _start([*as_user, "setpriv", "--pdeathsig", "QUIT", found[-1], "-D", home], port)
        try:
            yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/{USER}"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)


def _start(command: Sequence[str | Path], port: int) -> subprocess.Popen[str]:
    """Start the server and wait until it can be used."""
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    lines, said = lines_of(process), list[str]()
    while not said or _READY not in said[-1]:
        line = lines.get(timeout=READY_SECONDS)
        if line is None:
            raise HarnessError("PostgreSQL has ended\n" + "\n".join(said))
        said.append(line)
    return process


def _as_user(home: str) -> list[str]:
    """The beginning of a command: the server refuses to be root."""
    if os.geteuid() != 0:
        return []
    shutil.chown(home, USER, USER)
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
