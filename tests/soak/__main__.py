"""Soaks for ``--seconds``; the exit code is 1 if a promise was broken.

SIGTERM or Ctrl-C ends it early: what was soaked until then is checked. ``report.jsonl`` in
``--directory`` has a line for each fault, and ``said/`` what each run said.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.soak import ends
from tests.soak.faults import FAULTS, Fault, restart_if_ended
from tests.soak.site import PROGRESS_SECONDS, Site, SoakError
from tests.support.processes import became
from tests.support.seeds import choose_seed

EVERY_SECONDS = 10.0
RATE = 150
AFTER_PROGRESS = 0.75
"""The share of faults that wait until the run has dispatched something; the others meet starts."""
PATIENCE_SECONDS = 300.0
CONSUME_SECONDS = 1800.0
STOPPED_SECONDS = 60.0


class Soak:
    """One soak."""

    def __init__(self, directory: Path, seed: int, seconds: float, rate: int) -> None:
        self._site = Site(directory, seed, rate)
        self._seed, self._seconds = seed, seconds
        self._report = (directory / "report.jsonl").open("a", buffering=1)
        self._began = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.problems: list[str] = []
        self._is_ending = False
        self._moved = self._began
        self._position = 0

    def note(self, **fields: Any) -> None:
        """A line of the report, on the terminal too."""
        line = json.dumps({"seconds": round(time.monotonic() - self._began, 1), **fields})
        print(line, flush=True)
        self._report.write(line + "\n")

    def end_early(self, *_: object) -> None:
        """Handle SIGTERM and SIGINT."""
        self._is_ending = True

    def run(self) -> None:
        """Faults, and the comparison at the end."""
        site = self._site
        self.note(seed=self._seed, wanted_seconds=self._seconds)
        try:
            site.append()
            site.start()
            site.consumer.start()
            threading.Thread(target=self._feel_stops, daemon=True).start()
            self._soak()
            self._finish()
        except Exception as error:
            self.problems.append("".join(traceback.format_exception(error)))
        finally:
            if self.problems:
                site.keep_output()
            site.close()
        for problem in self.problems:
            self.note(problem=problem)
        self.note(faults=dict(self.faults), problems=len(self.problems))

    def _soak(self) -> None:
        site, rng, due = self._site, self._site.rng, time.monotonic()
        faults = list(FAULTS)
        while time.monotonic() - self._began < self._seconds and not self._is_ending:
            due += EVERY_SECONDS
            while time.monotonic() < due and not self._is_ending:
                self._watch()
                time.sleep(0.2)
            self._watch()
            if rng.random() < AFTER_PROGRESS:
                site.run.wait_for_progress(PATIENCE_SECONDS)
                self._watch()
            due = time.monotonic()
            self._try(rng.choices(faults, [FAULTS[fault] for fault in faults])[0], rng)

    def _try(self, fault: Fault, rng: random.Random) -> None:
        name, began = fault.__name__, time.monotonic()
        outcome = fault(self._site, rng)
        self.faults[name] += 1
        site = self._site
        self.note(
            number=self.faults.total(), fault=name, outcome=outcome,
            took=round(time.monotonic() - began, 1), watermark=site.position, runs=site.runs,
            consumed=sum(len(one.units) for one in site.consumer.queues.values()),
        )  # fmt: skip

    def _feel_stops(self) -> None:
        """Notice that the whole soak stood still: Spark's JVM gives itself up after ten minutes."""
        last = time.monotonic()
        while True:
            time.sleep(1)
            now = time.monotonic()
            if now - last > STOPPED_SECONDS:
                self._site.run.may_end = True
                self.note(stood_still=round(now - last))
            last = now

    def _watch(self) -> None:
        """Restart what a fault has ended; a soak whose watermark stands still has failed."""
        site, now = self._site, time.monotonic()
        if how := restart_if_ended(site):
            self.note(run=how)
        if site.consumer.failure is not None:
            raise SoakError(f"the consumer failed: {site.consumer.failure}")
        position = site.position
        if position != self._position:
            self._position, self._moved = position, now
        if now - self._moved > PROGRESS_SECONDS:
            raise SoakError(
                f"nothing was dispatched for {PROGRESS_SECONDS:.0f} s:\n{site.run.stderr}"
            )

    def _finish(self) -> None:
        """No more faults: catch up, be consumed whole, end; then compare."""
        site = self._site
        self.note(phase="the log ends")
        site.kill_appender()
        site.append()
        site.kill_appender()
        restart_if_ended(site)
        site.stop()
        site.check_orphans()
        code, out, said = site.command(*site.arguments("--once")[3:])
        if code:
            raise SoakError(f"the last run ended with {code}: {out} {said[-4000:]}")
        end = site.position
        self.note(phase="the rest is consumed", watermark=end)
        *_, (_, expected) = ends.expected_of(self._seed, end)
        site.start()
        wanted = {queue: len(units) for queue, units in expected.units.items()}
        became(lambda: site.consumer.has(wanted), CONSUME_SECONDS)
        site.consumer.end()
        site.stop()
        self.note(
            phase="comparing", messages=expected.messages, runs=site.runs,
            consumer_connections=site.consumer.connections, consumed_again=site.consumer.again,
        )  # fmt: skip
        for problem in ends.check(site, self._seed):
            self.problems.append(problem)
            self.note(found=problem)


def main() -> int:
    """1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--seed", type=int, default=choose_seed())
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second")
    parser.add_argument("--directory", type=Path, help="made, and kept; else a temporary one")
    chosen = parser.parse_args()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="reput-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed={chosen.seed} directory={directory}", flush=True)
    soak = Soak(directory, chosen.seed, chosen.seconds, chosen.rate)
    signal.signal(signal.SIGTERM, soak.end_early)
    signal.signal(signal.SIGINT, soak.end_early)
    soak.run()
    if not soak.problems and chosen.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
