"""Maven builds the Java projects of the tests, each once for its sources."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock

from tests.support.jdk import require_tools

BUILD_TIMEOUT_SECONDS = 900.0
ERROR_TAIL_LINES = 40


class HarnessError(RuntimeError):
    """A JVM of the tests, or its build, failed; the message carries the end of what it said."""


def require_maven(purpose: str) -> None:
    """Skip the calling test where Java or Maven is missing; on CI that is a failure instead."""
    require_tools(("java", "mvn"), purpose)


def build(
    project: Path,
    properties: Mapping[str, str] = MappingProxyType({}),
    finish: Callable[[Path], None] = lambda _target: None,
) -> Path:
    """Package a project, unless that was done for these very sources and properties; return its
    ``target``, or the folder in it that the pom names by ``rocketmq.version``.

    ``finish`` belongs to the build: it is called with that folder after Maven.

    A lock makes parallel test processes wait for one build. Staleness goes by content, because a
    checkout gives files any time stamp.
    """
    target = project / "target" / properties.get("rocketmq.version", "")
    stamp = target / "sources.sha256"
    given = [f"-D{name}={value}" for name, value in sorted(properties.items())]
    with FileLock(project / ".build.lock", timeout=BUILD_TIMEOUT_SECONDS):
        digest = _sources_digest(project, given)
        if stamp.is_file() and stamp.read_text() == digest:
            return target
        stamp.unlink(missing_ok=True)
        command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(project / "pom.xml")]
        try:
            done = subprocess.run(
                [*command, *given, "package"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=BUILD_TIMEOUT_SECONDS,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise HarnessError(f"maven took over {BUILD_TIMEOUT_SECONDS:.0f} s") from error
        if done.returncode != 0:
            raise HarnessError(f"maven failed, exit {done.returncode}\n{tail(done.stdout)}")
        target.mkdir(parents=True, exist_ok=True)
        finish(target)
        stamp.write_text(digest)
    return target


def tail(text: str) -> str:
    """The last lines of what a process said."""
    return "\n".join(text.splitlines()[-ERROR_TAIL_LINES:])


def _sources_digest(project: Path, given: Sequence[str]) -> str:
    digest = hashlib.sha256(" ".join(given).encode())
    for path in (project / "pom.xml", *sorted((project / "src").rglob("*"))):
        if path.is_file():
            digest.update(f"{path.relative_to(project)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
