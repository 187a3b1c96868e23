"""The JVM of a run on this machine: started before anything else, ended with the session.

pyspark would start it through Spark's shell scripts, when the session is requested. Here it starts
while Python still imports; without SPARK_HOME, so that the Python workers import the installed
pyspark and not the zip of its sources, which each of them would compile anew; and with the class
archive. Only Spark's scripts understand the settings that a user has made for them: where there are
any, pyspark starts the JVM as usual.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from store.errors import StoreError
from streaming.classarchive import ClassArchive, class_archive
from streaming.settings import JAVA_OPTIONS, local_settings

CONNECT_POLL_SECONDS = 0.01
CONN_INFO = "conn_info"
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


def find_java() -> Path:
    """Return the java that Spark would run. Raises StoreError, because Spark's own message is of no
    help."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise StoreError(
            f"no java in {'JAVA_HOME ' + home if home else 'PATH'}; "
            "install a JDK 17 or later ('make install' does) or set JAVA_HOME"
        )
    return Path(found)


@dataclass(slots=True)
class Jvm:
    """A JVM that was started, and the file in which it announces its address."""

    process: subprocess.Popen[bytes]
    directory: tempfile.TemporaryDirectory[str]
    making: ClassArchive | None
    """The archive that it writes when it ends."""
    connected: bool = False

    def address(self) -> tuple[int, str]:
        """Wait for the gateway and return its (port, secret). Raises StoreError where the JVM has
        ended."""
        told = Path(self.directory.name) / CONN_INFO
        while not told.exists():
            if self.process.poll() is not None:
                raise StoreError(f"Spark does not start: java ended with {self.process.returncode}")
            time.sleep(CONNECT_POLL_SECONDS)
        data = told.read_bytes()
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
        self.directory.cleanup()


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
    install."""
    spec = find_spec("pyspark")
    home = Path(spec.origin).parent if spec and spec.origin else None
    return home if home and (home / "jars").is_dir() and not (home / "conf").exists() else None


def start(extra: Mapping[str, str], *, make_archive: bool = False) -> Jvm | None:
    """Begin to start a JVM with our settings, which ``extra`` overrides; return at once.

    It returns None where Spark's own scripts have to start the JVM, or have started it
    (spark-submit). With ``make_archive`` the JVM writes the class archive when it ends. Raises
    StoreError where there is no Java.
    """
    # workers must run this interpreter, which has our packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # nor may a folder of the working directory shadow a package: `store` is a common name
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    home = _spark_home()
    if "PYSPARK_GATEWAY_PORT" in os.environ or home is None:
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
    return Jvm(process, directory, making)


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
