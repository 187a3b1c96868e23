"""The JVM of a run on this machine: its settings, its class archive, its start and end.

pyspark would start it through Spark's shell scripts, when the session is requested. Here it starts
while Python still imports; without SPARK_HOME, so that the Python workers import the installed
pyspark and not the zip of its sources, which each of them would compile anew; and with the class
archive. Only Spark's scripts understand the settings that a user has made for them: where there are
any, and in plain mode (``sources.plainspark``), pyspark starts the JVM as usual.

It imports nothing heavy: every import delays the JVM.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from reput.sources.plainspark import PLAIN_VARIABLE, is_plain
from reput.store import fsops
from reput.store.errors import StoreError
from reput.store.privatecache import private_directory
from reput.streaming.spark import workertemplate
from reput.streaming.spark.workertemplate import WorkerTemplate

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PYSPARK_RELEASE = "4.3."
"""How the version of every pyspark begins whose private parts are known."""
SETTINGS: dict[str, str] = {
    "spark.app.name": "reput",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # the JVM only carries bytes and plans: with the first compiler alone it starts in two thirds of
    # the time
    JAVA_OPTIONS: (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # this takes a tenth of the cost of an idle query; a busy one does not wait
    "spark.sql.streaming.pollingDelay": "40ms",
    # of several stores, none waits until another has caught up
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "1",
    # a batch has a few rows of packed runs: compiled code for them costs a tenth of its CPU
    "spark.sql.codegen.wholeStage": "false",
    # nor is it worth the compiler's 350 classes, which the class archive leaves out
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # packed runs are megabytes per task: they go straight to the driver, not through the block
    # manager
    "spark.task.maxDirectResultSize": "256m",
    # they wait for one another in no heap of the driver's, so that no sum of theirs is too much
    "spark.driver.maxResultSize": "0",
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
}
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
_PRIVATE_SETTINGS = {
    # Spark's checkpoint files cost 12 ms a batch instead of 65 (decision 0003); here they are a
    # cache
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""Settings that name classes of Spark's own."""
# a young generation that holds a batch saves five sixths of the collector's pauses; its share of
# this heap is larger than of a heap that the user chose
_HEAP_OPTIONS = "-Xms1g -Xmn680m"
_LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # over TCP the last small write of a task waits 40 ms for the acknowledgement of the previous
    # one
    "spark.python.unix.domain.socket.enabled": "true",
}
# workers are forked with kernels and Arrow already loaded
_PRIVATE_LOCAL = {"spark.python.daemon.module": "reput.sources.daemon"}
# these options silence the JVM about an archive that it refuses and about classes that it leaves
# out
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
CONNECT_POLL_SECONDS = 0.01
CONN_INFO = "conn_info"
START_SECONDS = 120.0
"""A JVM that could not start its gateway may live on with some thread of it."""
END_SECONDS = 20.0
ARCHIVE_SECONDS = 600.0
_OF_THE_SCRIPTS = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS",
    "SPARK_DIST_CLASSPATH",
)  # fmt: skip
"""Environment variables that Spark's scripts read."""
_OF_THE_LAUNCHER = ("spark.driver.extra", "spark.driver.defaultJavaOptions", "spark.jars")
"""Settings that Spark's launcher turns into a class path or options of the JVM."""
_MLLIB = "spark-mllib_"
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect",
    "java.base/java.io", "java.base/java.net", "java.base/java.nio", "java.base/java.util",
    "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/sun.nio.cs",
    "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
# these are the options of Spark's own launcher, except the vector module, which belongs to MLlib
# and warns on stderr
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


def cluster_settings() -> dict[str, str]:
    """Return the settings of a run, wherever its executors are."""
    if is_plain():
        return {**SETTINGS, f"spark.executorEnv.{PLAIN_VARIABLE}": "1"}
    return {**SETTINGS, **_PRIVATE_SETTINGS}


def local_settings(extra: dict[str, str]) -> dict[str, str]:
    """Return the settings of a run on this machine; ``extra`` overrides ours."""
    ours = {**cluster_settings(), **_LOCAL, **({} if is_plain() else _PRIVATE_LOCAL)}
    if "spark.driver.memory" not in extra:
        ours[JAVA_OPTIONS] += f" {_HEAP_OPTIONS}"
    return {**ours, **extra}


def find_java() -> Path:
    """Return the java that Spark would run. Raises StoreError, because Spark's own message is of no
    help."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin" if home else None)
    if path is None:
        raise StoreError(
            f"no java in {'JAVA_HOME ' + home if home else 'PATH'}; "
            "install a JDK 17 or later ('make install' does) or set JAVA_HOME"
        )
    return Path(path)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Spark's classes, read, checked and laid out once for one JVM and class path, or still to be.

    Without it, Spark spends half of its start time on loading classes. A JVM writes the archive
    when it ends (``-XX:ArchiveClassesAtExit``), into a file of its own that is renamed once it is
    whole and durable, so that several JVMs may make one at the same time. The file's name contains
    its size, since a truncated archive crashes a JVM. Every later JVM verifies its checksums; an
    archive that is damaged, or does not fit (another JDK, another class path), is ignored.
    """

    directory: Path
    key: str

    def file(self) -> Path | None:
        """Return the whole archive; None where there is none."""
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            # another process may replace it just now
            with suppress(FileNotFoundError):
                if path.name == self._name(path.stat().st_size):
                    return path
        return None

    def options(self) -> tuple[str, ...]:
        """Return the JVM options that use it; none where there is no archive."""
        path = self.file()
        if path is None:
            return ()
        return (*_QUIET, "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={path}")

    def making_options(self) -> tuple[str, ...]:
        """Return the JVM options that make it anew; call ``keep`` when that JVM has ended, and
        ``drop`` if it was killed."""
        return (*_QUIET, f"-XX:ArchiveClassesAtExit={self._partial}")

    def keep(self) -> Path | None:
        """Replace any older archive with the new one; return None if the JVM made none."""
        if not self._partial.exists():
            return None
        fd = os.open(self._partial, os.O_RDONLY)
        try:
            fsops.sync(fd, self._partial)
        finally:
            os.close(fd)
        new = self.directory / self._name(self._partial.stat().st_size)
        fsops.rename(self._partial, new)
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            if path != new:
                fsops.unlink(path)
        return new

    def drop(self) -> None:
        """Remove what the JVM has written of a new one; an older archive stays."""
        fsops.unlink(self._partial)

    @property
    def _partial(self) -> Path:
        return self.directory / f"{self.key}.{os.getpid()}"

    def _name(self, size: int) -> str:
        return f"{self.key}-{size}.jsa"


def class_archive(java: Path, class_path: str) -> ClassArchive | None:
    """Return the archive of a JVM; None where no private directory can be had."""
    try:
        directory = private_directory("jvm")
        home = java.resolve().parent.parent
        library = (home / "lib" / "server" / "libjvm.so").stat()
    except OSError:
        return None
    key = (str(home), int(library.st_mtime), library.st_size, class_path)
    return ClassArchive(directory, hashlib.sha256(repr(key).encode()).hexdigest()[:16])


@dataclass(slots=True)
class Jvm:
    """A JVM that was started, and the file in which it announces its address."""

    process: subprocess.Popen[bytes]
    directory: tempfile.TemporaryDirectory[str]
    making: ClassArchive | None
    """The archive that it writes when it ends."""
    workers: WorkerTemplate | None
    """The process that forks its Python workers; none where the user names their interpreter."""
    connected: bool = False

    def address(self) -> tuple[int, str]:
        """Wait for the gateway and return its (port, secret). Raises StoreError where the JVM has
        ended, or says nothing for ``START_SECONDS``."""
        info, waited = Path(self.directory.name) / CONN_INFO, 0.0
        while not info.exists():
            if self.process.poll() is not None:
                raise StoreError(f"Spark does not start: java ended with {self.process.returncode}")
            if waited > START_SECONDS:
                raise StoreError(
                    f"Spark does not start: java has opened no port within {START_SECONDS:.0f} s"
                )
            time.sleep(CONNECT_POLL_SECONDS)
            # not the clock's time: the machine may have stood still
            waited += CONNECT_POLL_SECONDS
        data = info.read_bytes()
        self.directory.cleanup()
        self.connected = True
        return int.from_bytes(data[:4], "big"), data[8:].decode()

    def end(self) -> None:
        """End the JVM by closing its stdin, and wait; kill it where it hangs."""
        if not self.connected:
            # nobody used it, and a JVM that is still starting would be slow to see the end of its
            # stdin
            self.process.kill()
        end_process(self.process, ARCHIVE_SECONDS if self.making else END_SECONDS)
        if self.workers is not None:
            self.workers.end()
        self.directory.cleanup()

    def kept_archive(self) -> Path | None:
        """Keep the archive that the JVM has written at its end; None where it writes none. Raises
        StoreError where it was killed meanwhile: the archive is not whole, and an older one
        stays."""
        if self.making is None:
            return None
        code = self.process.returncode
        if code:
            self.making.drop()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            raise StoreError(
                f"java {how} before Spark's classes were archived; if the machine ran out of "
                "memory, its kernel's log says so. What was prepared before is kept: start `reput "
                "prepare` again"
            )
        return self.making.keep()


def end_process(process: subprocess.Popen[bytes], seconds: float = END_SECONDS) -> None:
    """Close a gateway JVM's stdin, which ends it, and wait: nothing may outlive a run."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spark_home() -> Path | None:
    """Return the directory of pyspark, found without importing it; None unless it is a plain pip
    install of a release whose private parts are known."""
    spec = find_spec("pyspark")
    home = Path(spec.origin).parent if spec and spec.origin else None
    if home is None or not (home / "jars").is_dir() or (home / "conf").exists():
        return None
    version = re.search(r"__version__.*['\"](.+)['\"]", (home / "version.py").read_text("utf-8"))
    return home if version and version[1].startswith(PYSPARK_RELEASE) else None


def start(extra: Mapping[str, str], *, make_archive: bool = False) -> Jvm | None:
    """Begin to start a JVM with our settings, which ``extra`` overrides; return at once.

    It returns None where Spark's own scripts have to start the JVM, as in plain mode, or have
    started it (spark-submit). With ``make_archive`` the JVM writes the class archive when it ends.
    Raises StoreError where there is no Java.
    """
    # workers must run this interpreter, which has our packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # nor may a folder of the working directory shadow a package: `store` is a common name
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    home = _spark_home()
    if is_plain() or "PYSPARK_GATEWAY_PORT" in os.environ or home is None:
        return None
    if any(name in os.environ for name in _OF_THE_SCRIPTS):
        return None
    if any(key.startswith(_OF_THE_LAUNCHER) for key in extra) or "spark.master" in extra:
        return None
    java = find_java()
    settings = local_settings(dict(extra))
    class_path = _class_path(home)
    command = [str(java), "-cp", class_path, f"-Xmx{settings['spark.driver.memory']}"]
    command += [*shlex.split(settings[JAVA_OPTIONS]), *MODULE_OPTIONS]
    archive = class_archive(java, class_path)
    making = archive if make_archive else None
    if archive is not None:
        command += archive.making_options() if make_archive else archive.options()
    command.append("org.apache.spark.deploy.SparkSubmit")
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    directory = tempfile.TemporaryDirectory(prefix="reput-jvm-", ignore_cleanup_errors=True)
    environment = {
        **os.environ,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": f"{directory.name}/{CONN_INFO}",
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
    }
    # the JVM gets its own process group: Ctrl-C is for Python, which ends the JVM after the batch
    process = subprocess.Popen(
        [*command, "pyspark-shell"], stdin=subprocess.PIPE, env=environment, process_group=0
    )
    ours = os.environ["PYSPARK_PYTHON"] == sys.executable
    return Jvm(process, directory, making, workertemplate.start() if ours else None)


@contextmanager
def started(extra: Mapping[str, str]) -> Iterator[Jvm | None]:
    """Call ``start``, and end the JVM with the block, whatever its outcome."""
    jvm = start(extra)
    try:
        yield jvm
    finally:
        if jvm is not None:
            jvm.end()


def _class_path(home: Path) -> str:
    """Return every jar of Spark except MLlib, in a stable order on which the archive depends.

    MLlib, which nothing here uses, registers functions with each session by Scala's reflection,
    which takes more than a second.
    """
    jars = [jar for jar in (home / "jars").glob("*.jar") if not jar.name.startswith(_MLLIB)]
    # Spark's launcher puts slf4j's interface first too
    jars.sort(key=lambda jar: (not jar.name.startswith("slf4j-api-"), jar.name))
    return os.pathsep.join(map(str, jars))
