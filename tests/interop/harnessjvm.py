"""The JVMs of the Maven project in `harness/`: how they are built, started and waited for.

Why: hundreds of them start in a test run and many live for a second or two, so that their start is
most of what they cost.

Not done here: what they are asked to do, which is in `rocketmq.py` and `clients.py`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from tests.interop import maven
from tests.interop.maven import HarnessError, tail

HARNESS = Path(__file__).parent / "harness"
JAR, ARCHIVE = "harness.jar", "classes.jsa"
MAIN_CLASS = "reput.interop.Harness"
PARITY = "5.3.3"
"""The release whose files and rules this project reproduces."""
NEWEST = "5.5.1"
"""The release whose stores must be read and continued as well."""
RELEASES = (PARITY, NEWEST)
UNPUBLISHED = {"5.5.1": "5.5.0"}
"""Releases of which only the broker's own jars are published, and whose client and name server
stand in."""
CALL_TIMEOUT_SECONDS = 300.0


def build_harness(name: str) -> Path:
    """Build the Java side for a release unless its jar is of these very sources; return the jar."""
    others = UNPUBLISHED.get(name, name)
    versions = {"rocketmq.version": name, "rocketmq.others.version": others}
    return maven.build(HARNESS, versions, _archive_classes) / JAR


def _archive_classes(target: Path) -> None:
    """Have a JVM that plays every role write an archive of its classes, which spares every later
    one half of its start. A JVM ignores an archive that does not fit it."""
    with tempfile.TemporaryDirectory(prefix="reput-interop-") as home:
        making = f"-XX:ArchiveClassesAtExit={target / ARCHIVE}"
        command = _java(target, Path(home), making)
        done = subprocess.run(
            [*command, MAIN_CLASS, "warm", f"{home}/store"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=CALL_TIMEOUT_SECONDS, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise HarnessError(f"no archive of classes was made\n{tail(done.stderr)}")


def _java(
    target: Path,
    home: Path,
    *options: str,
    libraries: Sequence[str] = ("lib",),
    jvm_options: Sequence[str] = (),
) -> list[str]:
    """The command line of a JVM up to its class path; ``home`` is its private directory."""
    # a short life repays no optimizing compiler
    jvm_options = jvm_options or ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    command = ["java", *jvm_options, "-XX:-UsePerfData"]
    # stdout is not for the JVM's own warnings
    command += ["-Xlog:disable", "-Xlog:all=error:stderr", "-Dfile.encoding=UTF-8"]
    private = ("user.home", "java.io.tmpdir", "rocketmq.log.root.dir", "rocketmq.home.dir")
    command += [f"-D{name}={home}" for name in private]
    places = [target / JAR, *(target / name / "*" for name in libraries)]
    return [*command, *options, "-cp", os.pathsep.join(map(str, places))]


@contextlib.contextmanager
def of_release(name: str) -> Iterator[None]:
    """Every JVM that starts within is of this release of RocketMQ."""
    global _release  # noqa: PLW0603
    before, _release = _release, name
    try:
        yield
    finally:
        _release = before


_release = PARITY


def current_release() -> str:
    """The release that a JVM would be of."""
    return _release


def spawn(
    arguments: Sequence[str],
    *,
    heap: str = "256m",
    jvm_options: Sequence[str] = (),
    stdin: int = subprocess.DEVNULL,
    client: str = "",
    properties: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[str], Path]:
    """Start one JVM; its private directory lives as long as the returned process object.

    `client`: another release of it, OLD_CLIENT; `properties`: Java's, besides those for
    directories; `jvm_options`: for one that is to be fast, in place of those to start fast.
    """
    target = build_harness(_release).parent
    home = Path(tempfile.mkdtemp(prefix="reput-interop-"))
    options = [f"-Xmx{heap}", *(f"-D{name}={value}" for name, value in (properties or {}).items())]
    # another client is another class path, which the archive does not fit
    libraries = [f"lib-{client}", "lib"] if client else ["lib"]
    # nor other options of the JVM
    options += [] if client or jvm_options else [f"-XX:SharedArchiveFile={target / ARCHIVE}"]
    java = _java(target, home, *options, libraries=libraries, jvm_options=jvm_options)
    command = [*java, MAIN_CLASS, *arguments]
    try:
        with (home / "stderr.log").open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Java 17 spells file names and arguments by the locale: under "C" a queue of a
                # topic with a non-ASCII name would get a directory of question marks.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                text=True,
                encoding="utf-8",
            )
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    weakref.finalize(process, shutil.rmtree, home, ignore_errors=True)
    return process, home


def finish(process: subprocess.Popen[str], timeout: float, text: str | None = None) -> str:
    """Wait for a process that ends by itself and return its output."""
    try:
        output, _ = process.communicate(text, timeout=timeout)
    except BaseException as error:
        process.kill()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise _call_error(process, f"did not end within {timeout:.0f} s") from error
        raise
    if process.returncode != 0:
        raise _call_error(process, f"ended with exit {process.returncode}")
    return output


def _call_error(process: subprocess.Popen[str], problem: str) -> HarnessError:
    """Name the role that failed and add its last words, found by its own command line."""
    arguments = cast(list[str], process.args)
    role = arguments[arguments.index(MAIN_CLASS) + 1]
    prefix = "-Duser.home="
    home = next(text.removeprefix(prefix) for text in arguments if text.startswith(prefix))
    return HarnessError(f"{role} {problem}\n{last_words(Path(home))}")


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """The lines that a process prints, where they can be waited for; None marks the end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError, OSError):  # closed by kill()
            for line in cast(IO[str], process.stdout):
                lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def next_line(lines: queue.Queue[str | None], timeout: float, role: str, home: Path) -> str:
    """The next of these lines. Raises HarnessError where none comes."""
    try:
        line = lines.get(timeout=timeout)
    except queue.Empty:
        line, problem = None, f"said nothing in {timeout:.0f} s"
    else:
        problem = "ended"
    if line is None:
        raise HarnessError(f"the {role} {problem}\n{last_words(home)}")
    return line


def last_words(home: Path) -> str:
    parts = []
    for name in ("stderr.log", "console.log", "rocketmq.log"):
        path = home / name
        if path.is_file() and path.stat().st_size:
            parts.append(f"--- {name}\n{tail(path.read_text(errors='replace'))}")
    return "\n".join(parts)
