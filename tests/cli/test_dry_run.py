"""``reput run --dry-run`` says what the next start does: the start that follows says the same, and
until then no file has changed. ``reput verify --repair --dry-run`` does so of a repair
(``tests.torture.derivedrot`` compares what it says with what the repair changes)."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import has_begun_swap
from reput.cli import verify
from reput.cli.texts import human_bytes
from reput.store.errors import StoreError, UsageError
from reput.streaming.config import DispatcherConfig
from reput.upkeep.rebuild import rebuild
from tests.cli.test_errors import assert_one_line
from tests.readers.stores import SmallStore
from tests.streaming.test_begin_again import sparkless
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.grown_log import GrownLog
from tests.support.operations import once_before
from tests.support.processes import holder


class Site:
    """A log that a test changes, and an output of it."""

    def __init__(self, root: Path, seed: int, call: Call) -> None:
        self.log = GrownLog(root / "store", random.Random(seed), ext=False)
        self.log.grow(60)
        self.output = DerivedOutput(self.log.root, root / "output")
        self._root, self._call = root, call

    def foretold(self, *options: object) -> dict[str, Any]:
        """The answer of a dry run, which changes nothing."""
        before = tree(self._root)
        done = self._call(
            "run", self.output.store, "--output", self.output.root, "--dry-run", "--json", *options
        )
        assert tree(self._root) == before
        return json_object(done)


@pytest.fixture
def site(tmp_path: Path, seed: int, call: Call) -> Site:
    return Site(tmp_path, seed, call)


def test_changes_of_a_repair_that_are_not_shown_are_counted(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five queues are cut, and two files of positions change with them."""
    small = SmallStore(tmp_path / "store")
    for number in range(30):
        small.append(queue_id=number % 10)
    output = DerivedOutput(small.write(), tmp_path / "output")
    output.start()
    for path in (output.root / "consumequeue" / "Topic").glob("[0-4]/*"):
        path.write_bytes(b"damaged!" + path.read_bytes()[8:])
    repair = ("verify", output.store, "--output", output.root, "--repair", "--dry-run")

    def told() -> tuple[list[str], str]:
        lines = call(*repair).stdout.splitlines()
        (last,) = (at for at, line in enumerate(lines) if line.startswith("a dry run: "))
        return [line for line in lines[:last] if line.startswith("consumequeue/")], lines[last]

    changes, whole = told()
    assert [line.split(":")[0] for line in changes] == [
        f"consumequeue/Topic/{number}" for number in range(5)
    ]
    assert "places more" not in whole
    monkeypatch.setattr(verify, "SHOWN_DIFFERENCES", 2)
    shown, counted = told()
    assert shown == changes[:2]
    assert "without --dry-run 5 places more would change, too" in counted


def test_a_first_start(site: Site) -> None:
    """No directory is made."""
    told = site.foretold()
    assert (told["start"], told["log_end"], told["cut_from"]) == (0, site.log.plain.end, None)
    assert not site.output.root.exists()
    assert told["notes"] == list(site.output.start())


@pytest.mark.parametrize("how", ["torn", "cut", "cut and grown", "cut and grown beyond"])
@pytest.mark.parametrize("adopt", [False, True], ids=["own", "foreign"])
def test_a_start_over_a_log_that_was_cut(site: Site, how: str, adopt: bool) -> None:
    site.output.start()
    if adopt:
        shutil.rmtree(site.output.state)
    site.log.break_off(how, 50)
    options = ["--adopt"] if adopt else []
    told = site.foretold(*options)
    assert site.log.plain.spans[40][0] <= told["cut_from"] <= site.log.plain.end
    assert told["notes"] == list(site.output.start(adopt=adopt))


def test_a_start_after_which_nothing_is_left(site: Site, call: Call) -> None:
    site.output.start()
    done = call("run", site.output.store, "--output", site.output.root, "--dry-run")
    assert "a dry run: nothing was changed; without --dry-run nothing is dispatched" in done.stdout
    replay = ("--replay-from", "earliest")
    done = call("run", site.output.store, "--output", site.output.root, "--dry-run", *replay)
    assert f"messages from physical offset 0 up to {site.log.plain.end} are disp" in done.stdout
    told = site.foretold(*replay)
    assert (told["start"], told["watermark"]) == (0, site.log.plain.end)


def test_what_a_start_refuses(site: Site, call: Call, golden: Callable[[str], Path]) -> None:
    """With its line and exit code, and without waiting for what may come."""
    dry = ("run", site.output.store, "--output", site.output.root, "--dry-run")
    site.output.start()
    for place in ("9" * 5000, "12k", "1_0", "-1", ""):
        done = call(*dry, "--replay-from", place)
        assert_one_line(done, 2, f"{place!r}; it must be earliest or")
    with holder(lambda: Ownership(site.output.root).__enter__()) as pid:
        assert_one_line(call(*dry), 1, "another dispatcher (process ", str(pid))
    shutil.rmtree(site.output.state)
    assert_one_line(call(*dry), 2, "queues that reput did not build", "--adopt")
    assert_one_line(call("run", site.output.root / "none", "--dry-run"), 1, "no directory")
    wrong = call(*dry, "--consume-queue-file-size", "x")
    assert_one_line(wrong, 2, "--consume-queue-file-size is 'x'; it must be")
    for identity in ("x", "a" * 33):
        config = DispatcherConfig(site.output.store, site.output.root, store_id=identity)
        with pytest.raises(UsageError, match=f"store_id is '{identity}'; it must be 32 hex digits"):
            config.open_store()
    several = ("run", "--stores", f"{golden('plain').parent}/*", "--outputs", site.output.root)
    assert_one_line(call(*several, "--dry-run"), 2, "--dry-run is for one store")


def test_a_rebuild_that_was_killed_is_finished_first(site: Site, call: Call) -> None:
    """A dry run would have to guess at it; the start does what the line says."""
    site.output.start()
    store, output = site.output.store, site.output.root

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with once_before(lambda *_: has_begun_swap(output), fail), pytest.raises(StoreError):
        rebuild(DispatcherConfig(store, output), threading.Event(), build=sparkless)
    before = tree(output)
    done = call("run", store, "--output", output, "--dry-run")
    assert_one_line(done, 1, "the next start finishes it", "start without a dry run")
    assert tree(output) == before
    site.output.start()
    fields = site.foretold()
    assert fields["start"] == fields["log_end"]
    assert site.output.verify().differences == ()


def test_a_repair(site: Site, call: Call) -> None:
    """A wrong unit: the queue is cut there, and the watermark lowered to its message."""
    site.output.start()
    queue = next(site.output.root.glob("consumequeue/*/*/" + "0" * 20))
    data = bytearray(queue.read_bytes())
    number = next(at for at in range(len(data) // 20) if data[20 * at + 12 :][:8] != bytes(8))
    offset = int.from_bytes(data[20 * number :][:8], "big")
    data[20 * number + 19] ^= 1
    queue.write_bytes(data)
    before = tree(site.output.root)
    command = ("verify", site.output.store, "--output", site.output.root, "--repair")
    done = call(*command, "--dry-run", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["repaired"], told["replay_from"]) == (1, False, offset)
    place = str(queue.parent.relative_to(site.output.root))
    cut = f"cut at unit {number}, of the message at physical offset {offset}"
    assert {"place": place, "change": cut} in told["changes"]
    assert {"place": "reput/watermark", "change": f"lowered to {offset}"} in told["changes"]
    shown = call(*command, "--dry-run").stdout
    assert f"{place}: {cut}\n" in shown
    again = human_bytes(site.log.plain.end - offset)
    assert f"the watermark to {offset}, and the next run dispatches {again} again" in shown
    assert tree(site.output.root) == before
    assert call(*command).returncode == 0
    assert tree(site.output.root) != before
    assert_one_line(call(*command[:-1], "--dry-run"), 2, "--dry-run is for --repair")
    assert_one_line(call(*command, "--dry-run", "--sealed"), 2, "--sealed writes a seal")


def test_a_repair_of_a_queue_with_several_faults(site: Site, call: Call) -> None:
    """It is cut at the first, wherever a file is missing beyond it."""
    site.log.grow(240)
    site.output.start()
    queues = (site.output.root / "consumequeue").glob("*/*")
    queue = max(queues, key=lambda queue: len(list(queue.iterdir())))
    first, *_, missing, _ = sorted(queue.iterdir())
    missing.unlink()
    data = bytearray(first.read_bytes())
    number = len(data) // 20 - 1
    data[-1] ^= 1
    first.write_bytes(data)
    command = ("verify", site.output.store, "--output", site.output.root, "--repair", "--dry-run")
    place = queue.relative_to(site.output.root)
    (cut,) = [line for line in call(*command).stdout.splitlines() if line.startswith(f"{place}: ")]
    assert f"cut at unit {int(first.name) // 20 + number}, of the message" in cut
