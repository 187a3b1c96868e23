"""The JVM that we start ourselves: its options, its class archive, when Spark does it instead."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest

from reput.store import fsops
from reput.store.errors import StoreError, SyncError
from reput.streaming.spark import jvm
from reput.streaming.spark.jvm import ClassArchive, Jvm, class_archive
from tests.support.cli import ROOT

SPARK_HOME = Path(pyspark.__file__).parent


def test_options_are_those_of_sparks_launcher() -> None:
    """All but the vector module and what is for Derby: a Spark that wants more must be noticed."""
    told = subprocess.run(
        [str(jvm.find_java()), "-cp", f"{SPARK_HOME}/jars/*", "org.apache.spark.launcher.Main",
         "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"],
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    options = {part.strip() for part in told if part.strip().startswith(("-XX", "-D", "--"))}
    left_out = {
        "--add-modules=jdk.incubator.vector",
        "-Dderby.connection.requireAuthentication=false",
    }
    assert options - left_out == set(jvm.MODULE_OPTIONS)


def test_what_only_sparks_scripts_understand_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings of the class path, another master, a Spark of the user's own, spark-submit."""
    for key in (
        "spark.driver.extraClassPath", "spark.driver.defaultJavaOptions", "spark.jars.packages",
        "spark.master",
    ):  # fmt: skip
        assert jvm.start({key: "x"}) is None
    for name in (
        "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH",
        "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT",
    ):  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setenv(name, "1")
            assert jvm.start({}) is None


def test_workers_run_the_python_that_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice they run this one."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/theirs/python")
    jvm.start({"spark.master": "x"})
    assert os.environ["PYSPARK_PYTHON"] == "/opt/theirs/python"
    with jvm.started({}) as started:
        assert started is not None
        assert started.workers is None, "Spark would be told to run the stub"
    monkeypatch.delenv("PYSPARK_PYTHON")
    jvm.start({"spark.master": "x"})
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_workers_take_no_module_from_the_directory_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts it in a directory of programs of their own has other modules there."""
    (tmp_path / "colorsys.py").write_text("raise ValueError")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.delenv("PYTHONSAFEPATH")
    worker = [sys.executable, "-c", "import colorsys"]
    assert subprocess.run(worker, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    jvm.start({"spark.master": "x"})
    assert subprocess.run(worker, cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("memory", ["64m", "1g", None])
def test_java_takes_the_heap_that_the_user_chose(memory: str | None) -> None:
    """Our heap begins at a gigabyte, which no smaller one may."""
    settings = jvm.local_settings({} if memory is None else {"spark.driver.memory": memory})
    heap = f"-Xmx{settings['spark.driver.memory']}"
    assert heap == f"-Xmx{memory or '1g'}"
    java = [str(jvm.find_java()), heap, *shlex.split(settings[jvm.JAVA_OPTIONS]), "-version"]
    done = subprocess.run(java, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_another_pyspark_is_started_by_its_own_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one with a configuration of the user's, of another release, or without Java's part.
    Only pip's is known."""
    home = tmp_path / "pyspark"
    (home / "jars").mkdir(parents=True)
    (home / "__init__.py").write_text("")
    version = (SPARK_HOME / "version.py").read_text("utf-8")
    (home / "version.py").write_text(version)
    monkeypatch.delitem(sys.modules, "pyspark")
    monkeypatch.syspath_prepend(tmp_path)
    assert jvm._spark_home() == home
    (home / "conf").mkdir()
    assert jvm._spark_home() is None
    (home / "conf").rmdir()
    (home / "version.py").write_text(version.replace(pyspark.__version__, "4.2.0"))
    assert jvm._spark_home() is None
    (home / "version.py").write_text(version)
    (home / "jars").rmdir()
    assert jvm._spark_home() is None


@pytest.mark.parametrize("home", [None, "", "home"])
def test_the_java_is_that_of_sparks_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """They ask whether JAVA_HOME is empty, and look into PATH then."""
    for directory in ("path", "home/bin"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "java").write_text("#!/bin/sh\n")
        (tmp_path / directory / "java").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home) if home else "")
    expected = tmp_path / ("home/bin" if home else "path") / "java"
    assert jvm.find_java() == expected


def test_a_jvm_that_ends_at_once_is_an_error() -> None:
    """Its gateway is not waited for."""
    with jvm.started({"spark.driver.memory": "much"}) as started:
        assert started is not None
        with pytest.raises(StoreError, match="java ended with 1"):
            started.address()


def test_a_jvm_that_opens_no_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose main thread has died lives on, and the run would wait for ever."""
    monkeypatch.setattr(jvm, "START_SECONDS", 0.1)
    with jvm.started({}) as started:
        assert started is not None
        started.process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreError, match="java has opened no port within"):
            started.address()
    assert started.process.returncode == -signal.SIGKILL


def test_the_end_of_the_block_is_the_end_of_the_jvm() -> None:
    """This holds even for a JVM that is still starting, and for the process that forks workers."""
    with jvm.started({}) as started:
        assert started is not None
        workers = started.workers
        assert workers is not None
    assert started.process.returncode is not None
    assert workers.process.returncode is not None
    assert not [path for path in (started, workers) if Path(path.directory.name).exists()]


def _version(archive: ClassArchive) -> subprocess.CompletedProcess[str]:
    class_path = f"{SPARK_HOME}/jars/spark-launcher_2.13-{pyspark.__version__}.jar"
    return subprocess.run(
        [str(jvm.find_java()), "-cp", class_path, *archive.options(), "-version"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def _make(archive: ClassArchive) -> Path:
    java = [str(jvm.find_java()), *archive.making_options(), "-version"]
    subprocess.run(java, check=True, capture_output=True)
    made = archive.keep()
    assert made is not None
    return made


def test_a_damaged_class_archive_is_put_aside(tmp_path: Path) -> None:
    """Cut short: not offered to the JVM, which would die of it. Wrong bytes: the JVM's checksums
    find them. Neither is worth a word to the user."""
    archive = ClassArchive(tmp_path, "key")
    assert archive.options() == ()
    _make(archive)
    made = _make(archive)
    assert list(tmp_path.iterdir()) == [made]
    assert archive.file() == made
    assert _version(archive).returncode == 0
    whole = made.read_bytes()
    made.chmod(0o600)
    for position in range(4096, len(whole), len(whole) // 7):
        made.write_bytes(whole[:position] + b"\xff" * 64 + whole[position + 64 :])
        done = _version(archive)
        assert done.returncode == 0
        assert len(done.stderr.splitlines()) == 3, done.stderr
    made.write_bytes(whole[: len(whole) // 2])
    assert archive.options() == ()


def test_a_start_beside_one_that_prepares_finds_an_archive_or_none(tmp_path: Path) -> None:
    """The older one may be gone as soon as its name was read."""
    (tmp_path / "key-1.jsa").symlink_to(tmp_path / "gone")
    archive = ClassArchive(tmp_path, "key")
    assert archive.options() == ()
    assert archive.file() is None


def test_an_archive_that_is_not_durable_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would leave a file of the right size."""
    archive = ClassArchive(tmp_path, "key")
    archive._partial.write_bytes(b"first")
    first = archive.keep()
    archive._partial.write_bytes(b"another")
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:1=EIO"))
        with pytest.raises(SyncError):
            archive.keep()
    assert [*tmp_path.glob("*.jsa")] == [first]


def test_what_a_java_has_archived_counts_only_if_it_came_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed, as by a machine short of memory, leaves the archive of before. The end
    of one that archives is waited for longer than any other."""
    monkeypatch.setattr(jvm, "END_SECONDS", 0.0)
    archive = ClassArchive(tmp_path, "key")

    def ended(data: bytes, *, is_killed: bool) -> Jvm:
        archive._partial.write_bytes(data)
        process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if is_killed:
            process.kill()
        else:
            assert process.stdin is not None
            process.stdin.write(b"\n")
        started = Jvm(process, tempfile.TemporaryDirectory(), archive, None, connected=True)
        started.end()
        return started

    whole = ended(b"whole", is_killed=False).kept_archive()
    assert whole is not None
    assert whole.read_bytes() == b"whole"
    with pytest.raises(StoreError, match=r"killed by signal 9 before .* start `reput prepare` aga"):
        ended(b"a part", is_killed=True).kept_archive()
    assert [*tmp_path.iterdir()] == [whole]
    assert archive.file() == whole


def test_an_archive_belongs_to_one_java_and_one_class_path() -> None:
    """Another class path, another key."""
    java = jvm.find_java()
    first, second = class_archive(java, "a.jar"), class_archive(java, "b.jar")
    assert first is not None
    assert second is not None
    assert first.key != second.key


WITH_A_SILENT_CALLBACK = """
import socket, time
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from reput.streaming.spark.session import session

with session({}):
    gateway = SparkContext._gateway
    ensure_callback_server_started(gateway)
    server = gateway.get_callback_server()
    silent = socket.create_connection(("127.0.0.1", server.get_listening_port()))
    while not server.connections:
        time.sleep(0.01)
print("ended")
"""


@pytest.mark.extended
def test_a_session_ends_beside_a_connection_that_says_nothing() -> None:
    """Spark may keep a connection open by which it calls functions in Python; a thread waits there
    for the next call."""
    command = [sys.executable, "-c", WITH_A_SILENT_CALLBACK]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
