"""Runs in the guest: disturbs workloads by power cuts or failing writes, and checks what is on the
disk afterwards. Each case prints one line of JSON."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reput.store.errors import ReputError
from tests.crash.powercut.device import (
    DROPPED_WRITES,
    FAILING_WRITES,
    LOGGED,
    REPLAY,
    SNAPSHOT,
    WRITE_LOG,
    Device,
    copy_disk,
    open_disk,
)
from tests.crash.powercut.machine import RESULT, STORES
from tests.crash.powercut.workload import WORKLOADS, Prepared, Workload
from tests.crash.powercut.writelog import Write, read_writes

_FAILURE_SECONDS = 60.0
_ENDED, _REFUSED, _CRASHED = 0, 1, 2


class Run:
    """A workload in a process of its own, which reports its acknowledgements through a pipe."""

    def __init__(self, workload: Workload, root: Path, rng: random.Random) -> None:
        self._pipe, write_end = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os._exit(_run(workload, root, rng, write_end))
        os.close(write_end)
        os.set_blocking(self._pipe, False)
        self.acknowledged = 0
        self.status: int | None = None

    def wait(self, seconds: float) -> None:
        """Wait until the process ends, or until ``seconds`` have passed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.status is None:
            time.sleep(0.001)
            self._reap(os.WNOHANG)

    def note(self) -> None:
        """Read the acknowledgements so far."""
        try:
            while data := os.read(self._pipe, 8):
                self.acknowledged = max(self.acknowledged, struct.unpack("<q", data)[0])
        except BlockingIOError:
            return

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if self.status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._reap(0)
        os.close(self._pipe)

    def _reap(self, options: int) -> None:
        pid, status = os.waitpid(self._pid, options)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)


def _run(workload: Workload, root: Path, rng: random.Random, write_end: int) -> int:
    try:
        workload.run(root, rng, lambda end: _tell(write_end, end))
    except ReputError:
        return _REFUSED
    except BaseException:
        traceback.print_exc()
        return _CRASHED
    return _ENDED


def _tell(write_end: int, end: int) -> None:
    os.write(write_end, struct.pack("<q", end))


class Guest:
    """All cases of one boot, on one file system."""

    def __init__(self, file_system: str, seed: int, images_per_run: int) -> None:
        self._device = Device(file_system, Path("/mnt/disk"))
        self._seed = seed
        self._images_per_run = images_per_run
        self._prepared: dict[str, Prepared] = {}
        self._seconds: dict[str, float] = {}

    def cut(self, number: int, kind: str) -> dict[str, object]:
        """Cut the power one to three times; a later cut may hit the recovery from an earlier
        one."""
        rng, store, workload = self._lay(number, kind)
        acknowledged = 0
        for _ in range(rng.choice((1, 1, 2, 3))):
            with self._device.mounted() as mount_point:
                run = Run(workload, mount_point / "output", rng)
                run.wait(rng.uniform(0, self._seconds[f"{kind}/{store}"]))
                run.note()
                self._device.switch(DROPPED_WRITES)
                run.kill()
            acknowledged = max(acknowledged, run.acknowledged)
            faults = ["the run crashed"] if run.status == _CRASHED else []
            if faults:
                break
        return self._result(number, kind, store, acknowledged, faults)

    def fail(self, number: int, kind: str) -> dict[str, object]:
        """Let every write fail from some moment on. The run must end with an error of ours, and
        what it has acknowledged must be on the disk."""
        rng, store, workload = self._lay(number, kind)
        with self._device.mounted() as mount_point:
            run = Run(workload, mount_point / "output", rng)
            run.wait(rng.uniform(0, self._seconds[f"{kind}/{store}"]))
            self._device.switch(FAILING_WRITES)
            run.wait(_FAILURE_SECONDS)
            run.note()
            hung = run.status is None
            run.kill()
            faults = ["the run hangs"] if hung else []
            faults += ["the run crashed"] if run.status == _CRASHED else []
        return self._result(number, kind, store, run.acknowledged, faults)

    def _lay(self, number: int, kind: str) -> tuple[random.Random, str, Workload]:
        rng = random.Random(f"{self._seed}/{number}")
        store = rng.choice(STORES)
        if store not in self._prepared:
            self._prepared[store] = Prepared.of(store, Path("/mnt") / store)
        workload = WORKLOADS[kind](self._prepared[store])
        with self._device.mounted() as mount_point:
            root = mount_point / "output"
            if f"{kind}/{store}" not in self._seconds:
                # how long it takes undisturbed
                self._begin(workload, root, rng)
                began = time.monotonic()
                run = Run(workload, root, rng)
                run.wait(_FAILURE_SECONDS)
                self._seconds[f"{kind}/{store}"] = time.monotonic() - began
                run.kill()
            self._begin(workload, root, rng)
        return rng, store, workload

    def _begin(self, workload: Workload, root: Path, rng: random.Random) -> None:
        if root.exists():
            shutil.rmtree(root)
        workload.lay(root, rng)
        os.sync()

    def _result(
        self, number: int, kind: str, store: str, acknowledged: int, faults: Sequence[str]
    ) -> dict[str, object]:
        found = [*faults]
        with self._device.mounted() as mount_point:
            found += self._faults(WORKLOADS[kind](self._prepared[store]), mount_point, acknowledged)
        return {"number": number, "kind": kind, "store": store, "images": 1, "faults": found}

    def _faults(self, workload: Workload, mount_point: Path, acknowledged: int) -> list[str]:
        try:
            return workload.check(mount_point / "output", acknowledged)
        except Exception:
            return [traceback.format_exc()]

    def writes(self, number: int, kind: str) -> dict[str, object]:
        """Record every write of one run. Then check images of the disk after some of the writes,
        also without some of those since the last barrier."""
        rng, store, workload = self._lay(number, kind)
        copy_disk()
        with self._device.mounted(LOGGED) as mount_point:
            workload.run(mount_point / "output", rng, lambda end: self._device.mark(str(end)))
        faults: list[str] = []
        images = 0
        noted = list(read_writes(WRITE_LOG))
        share = self._images_per_run / (2 * len(noted))
        for before, acknowledged in _images(noted, rng):
            if rng.random() >= share:
                continue
            images += 1
            with self._device.mounted(SNAPSHOT, before) as mount_point:
                found = self._faults(workload, mount_point, acknowledged)
            faults += [f"image {images}: {fault}" for fault in found]
        return {"number": number, "kind": kind, "store": store, "images": images, "faults": faults}


def _images(writes: Sequence[Write], rng: random.Random) -> Iterator[tuple[list[Write], int]]:
    """Yield the writes since the last barrier that an image has, and the acknowledgement by then;
    REPLAY has all writes before the barrier."""
    since: list[Write] = []
    acknowledged = 0
    for write in writes:
        if write.is_mark:
            text = write.data.decode("ascii")
            acknowledged = max(acknowledged, int(text)) if text.isdigit() else acknowledged
            continue
        since.append(write)
        if write.is_barrier:
            with open_disk(REPLAY) as disk:
                for found in since:
                    found.apply(disk)
            since = []
        yield since, acknowledged
        if len(since) > 1:
            yield [found for found in since if rng.random() < 0.5], acknowledged


def main(job: dict[str, Any]) -> None:
    """Run the cases of a job (``machine.boot``)."""
    guest = Guest(job["file_system"], job["seed"], job["images_per_run"])
    modes = {"cut": guest.cut, "fail": guest.fail, "writes": guest.writes}
    for case in job["cases"]:
        result = modes[case["mode"]](case["number"], case["kind"])
        print(f"\n{RESULT}{json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
