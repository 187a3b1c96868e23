"""Spark's Python workers as forks of one process, beside interpreters that Spark would start."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from reput.streaming.spark import workertemplate
from reput.streaming.spark.workertemplate import WorkerTemplate
from tests.support.processes import became, fork, not_ended, open_paths

SECONDS = 60.0
Stub = subprocess.Popen[bytes]
WORKER = """
import json, os, sys

# the stub's shell sets PWD
variables = sorted(item for item in os.environ.items() if item[0] != "PWD")
print(json.dumps([os.getcwd(), variables, sys.argv[1:], sys.stdin.read()]))
print(__name__, __spec__.name)
if sys.argv[1] == "raise":
    raise ValueError("of the worker")
print("to stderr", file=sys.stderr)
ends = {"none": None, "text": "why it ends"}
sys.exit(ends[sys.argv[1]] if sys.argv[1] in ends else int(sys.argv[1]))
"""
WAITING = """
import signal

print("runs", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def template() -> Iterator[WorkerTemplate]:
    """A template that all tests of this file fork workers from."""
    started = workertemplate.start()
    yield started
    started.end()


def _run(python: str, module: str, argument: str, below: Path) -> subprocess.CompletedProcess[str]:
    """Run a worker's module as Spark does: from a directory of its own, with its own variables."""
    return subprocess.run(
        [python, "-m", module, argument], input="sent by Spark", cwd=below,
        env={"PYTHONPATH": str(below), "PYTHONSAFEPATH": "1", "ONE": "-Da=b -Dc=d", "NONE": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def _seen(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Return a worker's exit code, output, and last line on stderr, all that Spark sees of it."""
    return done.returncode, done.stdout, done.stderr.splitlines()[-1]


@pytest.mark.parametrize("argument", ["0", "7", "none", "text", "raise"])
def test_a_fork_is_what_an_interpreter_of_its_own_would_be(
    template: WorkerTemplate, tmp_path: Path, argument: str
) -> None:
    """It has the same streams, directory, environment, arguments and exit code."""
    (tmp_path / "worker_of_a_test.py").write_text(WORKER)
    forked, own = (
        _run(python, "worker_of_a_test", argument, tmp_path)
        for python in (template.python, sys.executable)
    )
    assert _seen(forked) == _seen(own)
    assert "sent by Spark" in forked.stdout


@pytest.mark.parametrize("is_there", [False, True])
def test_a_worker_whose_query_is_over_says_nothing(
    template: WorkerTemplate, tmp_path: Path, is_there: bool
) -> None:
    """Spark removes the socket of a query that is stopped. One at which nobody listens is another
    matter, which is told as Spark's own worker tells it."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as closed:
        if is_there:
            closed.bind(str(path))
    done = subprocess.run(
        [template.python, "-m", "pyspark.sql.streaming.python_streaming_source_runner"],
        env={"PYTHON_WORKER_FACTORY_SOCK_PATH": str(path)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert ("CANNOT_OPEN_SOCKET" in done.stderr) is is_there
    assert bool(done.stderr) is is_there


def test_what_is_no_module_runs_in_an_interpreter(template: WorkerTemplate) -> None:
    """Whoever is given this interpreter can ask it for its version, or to run a line."""
    for arguments in (["--version"], ["-c", "import pyspark; print(pyspark.__version__)"]):
        forked, own = (
            subprocess.run([python, *arguments], capture_output=True, check=True).stdout
            for python in (template.python, sys.executable)
        )
        assert forked == own != b""


@contextmanager
def _waiting(template: WorkerTemplate, below: Path) -> Iterator[tuple[Stub, psutil.Process]]:
    """A stub and its worker, which runs until it is killed."""
    (below / "waiting_of_a_test.py").write_text(WAITING)
    with subprocess.Popen(
        [template.python, "-m", "waiting_of_a_test"], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(below)},
    ) as stub:  # fmt: skip
        assert stub.stdout is not None
        assert stub.stdout.readline() == b"runs\n"
        (worker,) = psutil.Process(template.process.pid).children()
        try:
            yield stub, worker
        finally:
            stub.kill()


def test_a_worker_that_spark_kills_ends(template: WorkerTemplate, tmp_path: Path) -> None:
    """Spark knows the stub's process only. The template keeps nothing of them."""

    def kept() -> list[str]:
        names = [path.name for path in open_paths(Path(), template.process.pid)]
        return [name for name in names if name.startswith("socket:") or "pidfd" in name]

    with _waiting(template, tmp_path) as (stub, worker):
        # one of the worker, one of the stub, and the one at which it listens
        assert became(lambda: len(kept()) == 3, 20), kept()
        stub.kill()
        assert not_ended([worker], 60) == []
    assert became(lambda: len(kept()) == 1, 20), kept()


def test_a_worker_that_is_killed_ends_its_stub_alone(
    template: WorkerTemplate, tmp_path: Path
) -> None:
    """As by a machine short of memory; Spark sees that it has failed, and gets another one."""
    with _waiting(template, tmp_path) as (stub, worker):
        worker.kill()
        assert stub.wait(SECONDS) > 0
    with _waiting(template, tmp_path) as (stub, worker):
        assert worker.is_running()
        stub.kill()
        assert not_ended([worker], SECONDS) == []


@pytest.mark.parametrize("first", ["stub", "worker"])
def test_a_worker_that_ends_while_spark_kills_it_is_no_matter(
    template: WorkerTemplate, tmp_path: Path, first: str
) -> None:
    """The template sees both ends at once here, in their order, and forks on."""
    with _waiting(template, tmp_path) as (stub, worker):
        template.process.send_signal(signal.SIGSTOP)
        ends = [psutil.Process(stub.pid), worker]
        for process in ends if first == "stub" else reversed(ends):
            process.kill()
            assert not_ended([process], SECONDS) == []
        template.process.send_signal(signal.SIGCONT)
    with _waiting(template, tmp_path) as (stub, worker):
        assert worker.is_running()
        stub.kill()
        assert not_ended([worker], 60) == []


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x09", b"\0\0\0\x09half"])
def test_nothing_is_kept_of_a_stub_that_is_killed_early(
    template: WorkerTemplate, sent: bytes
) -> None:
    """Its request is not whole. Whoever reads its output sees the end of it."""
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX) as stub:
        stub.connect(f"{template.directory.name}/{workertemplate.SOCKET}")
        if sent:
            socket.send_fds(stub, [sent], [theirs] * 3)
    os.close(theirs)
    assert select.select([ours], [], [], SECONDS)[0] == [ours]
    assert os.read(ours, 1) == b""
    os.close(ours)
    done = subprocess.run([template.python, "-m", "this"], capture_output=True, check=True)
    assert done.stdout.startswith(b"The Zen of Python")


def test_without_its_template_the_stub_is_the_interpreter(tmp_path: Path) -> None:
    """A machine short of memory may kill the template: its workers go on, and new ones start."""
    (tmp_path / "worker_of_a_test.py").write_text(WORKER)
    template = workertemplate.start()
    with _waiting(template, tmp_path) as (stub, worker):
        template.process.kill()
        template.process.wait()
        own, stubs = (
            _run(python, "worker_of_a_test", "7", tmp_path)
            for python in (sys.executable, template.python)
        )
        assert _seen(stubs) == _seen(own)
        assert stub.poll() is None
        worker.terminate()
        assert stub.wait(60) != 0
    template.end()


def test_workers_are_without_pandas(template: WorkerTemplate, tmp_path: Path) -> None:
    """Arrow and pyspark would import it, and make no use of it."""
    (tmp_path / "worker_of_arrays.py").write_text(
        "import sys, pyarrow as pa\nprint(pa.array([1, 2]).to_pylist(), 'pandas' in sys.modules)\n"
    )
    done = _run(template.python, "worker_of_arrays", "", tmp_path)
    assert (done.stdout, done.stderr) == ("[1, 2] False\n", "")


def test_nothing_outlives_a_driver_that_is_killed() -> None:
    """The template ends and removes its directory."""
    read, write = os.pipe()

    def driver() -> None:
        started = workertemplate.start()
        os.write(write, f"{started.process.pid} {started.python}".encode())
        signal.pause()

    pid = fork(driver)
    found, python = os.read(read, 4096).decode().split()
    template = psutil.Process(int(found))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not_ended([template], 60) == []
    assert not Path(python).parent.exists()
    os.close(read)
    os.close(write)


def test_workers_of_a_session_are_forks(spark: SparkSession) -> None:
    """They are below the template, which is a child of the driver."""

    def ancestors(_: int) -> list[int]:
        return [process.pid for process in psutil.Process().parents()]

    (found,) = spark.sparkContext.parallelize([0], 1).map(ancestors).collect()
    names = [psutil.Process(pid).cmdline() for pid in found]
    above = names[found.index(os.getpid()) - 1]
    assert workertemplate.__name__ in above
