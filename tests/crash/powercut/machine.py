"""Boots user-mode Linux, which ``deploy/install-uml.sh`` installs, and reads its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[3]
FILE_SYSTEMS = ("ext4", "xfs")
KINDS = ("dispatch", "repair", "swap")
"""Workloads (``workload``)."""
STORES = ("batch", "ext", "lmq")
"""Golden stores that have every kind of queue and an index."""
RESULT = "case: "
"""Lines of results begin with it on the console."""
_DISK_BYTES = {"ext4": 64 << 20, "xfs": 320 << 20}


def kernel_directory() -> Path:
    """Return the directory where deploy/install-uml.sh puts the kernel."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "reput" / "uml"


def is_installed() -> bool:
    """Whether the kernel is there, and this process may create devices in the guest."""
    return (kernel_directory() / "linux").exists() and os.geteuid() == 0


@dataclass(frozen=True)
class Case:
    """One disturbed run; its random choices follow from the seed and its number."""

    number: int
    mode: str
    """"cut", "fail" or "writes" (``guest.Guest``)."""
    kind: str
    file_system: str

    @classmethod
    def of(cls, number: int) -> Case:
        """Return the case of a number: file systems, workloads and disturbances take turns."""
        turn = number // len(FILE_SYSTEMS)
        mode = {8: "fail", 9: "writes"}.get(turn % 10, "cut")
        return cls(number, mode, KINDS[turn % len(KINDS)], FILE_SYSTEMS[number % 2])


def boot(
    cases: Sequence[Case], seed: int, directory: Path, images_per_run: int
) -> Iterator[dict[str, Any]]:
    """Run cases of one file system in one boot, and yield the result of each.

    ``directory`` holds the disks. ``images_per_run`` is the approximate number of images that are
    checked of a run with recorded writes. Raises RuntimeError with the console if the guest ends
    early.
    """
    file_system = cases[0].file_system
    path = directory / "job.json"
    job = {
        "file_system": file_system,
        "seed": seed,
        "images_per_run": images_per_run,
        "cases": [asdict(case) for case in cases],
    }
    path.write_text(json.dumps(job), "utf-8")
    arguments = [
        str(kernel_directory() / "linux"),
        "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
        "mem=1G", "con=null", "con0=null,fd:1",
        f"init={Path(__file__).with_name('init.sh')}",
        f"KERNEL_MODULES={kernel_directory() / 'modules'}",
        f"REPOSITORY={REPOSITORY}", f"PYTHON={sys.executable}", f"JOB={path}",
        f"CACHE={kernel_directory().parent}",
        *(f"ubd{letter}={_disk(directory / letter, file_system)}" for letter in "bcde"),
    ]  # fmt: skip
    console: list[str] = []
    missing = {case.number for case in cases}
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    ) as kernel:  # fmt: skip
        try:
            assert kernel.stdout is not None
            for line in kernel.stdout:
                if line.startswith(RESULT):
                    result = json.loads(line.removeprefix(RESULT))
                    missing.discard(result["number"])
                    yield result
                else:
                    console.append(line)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(kernel.pid, signal.SIGKILL)
    if missing:
        raise RuntimeError(
            f"the guest ended before cases {sorted(missing)}:\n{''.join(console[-60:])}"
        )


def _disk(path: Path, file_system: str) -> Path:
    with path.open("wb") as file:
        file.truncate(_DISK_BYTES[file_system])
    return path
