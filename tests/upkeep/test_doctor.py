"""``doctor`` names one command for each broken state, and whoever only follows it ends with a sound
output."""

from __future__ import annotations

import json
import shlex
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from reput.store.errors import StoreError
from reput.store.files import ASIDE_DIRECTORY, SWAP_JOURNAL_FILE
from reput.streaming.config import DispatcherConfig
from reput.upkeep import doctor
from reput.upkeep.rebuild import rebuild
from tests.cli.test_errors import assert_one_line
from tests.streaming.test_begin_again import LOG_FILE_SIZE, Site, sparkless
from tests.support.cli import Call
from tests.support.faults import Faults
from tests.support.golden import tree

MOST_COMMANDS = 4
pytestmark = pytest.mark.usefixtures("spark")


def built(directory: Path) -> Site:
    """Fifty messages of two topics, dispatched."""
    site = Site(directory)
    site.put("Orders", range(25))
    site.put("Other", range(25))
    site.write()
    site.output.start()
    return site


def test_five_places_of_a_find_are_named() -> None:
    """The others are counted."""
    places = ["Orders 0", "Orders 1", "Other 0", "Other 1", "Other 2", "Third 0", "Third 1"]
    assert [doctor._some(places[:count]) for count in (1, 5, 7)] == [
        "Orders 0", ", ".join(places[:5]), f"{', '.join(places[:5])} and 2 more"
    ]  # fmt: skip


def queues_gone(site: Site) -> None:
    shutil.rmtree(site.output.root / "consumequeue")


def one_queue_gone(site: Site) -> None:
    shutil.rmtree(site.output.root / "consumequeue" / "Orders")


def units_zeroed(site: Site) -> None:
    path = max((site.output.root / "consumequeue" / "Other" / "0").iterdir())
    path.write_bytes(bytes(path.stat().st_size))


def run_killed(site: Site) -> None:
    """The run was another process than this one."""
    (site.output.state / "abort").touch()
    path = site.output.state / "owner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 1 << 22}))


def log_cut(site: Site) -> None:
    """The broker has lost five messages, and has written others."""
    site.plain.cut(site.plain.spans[-6][1])
    site.put("Orders", range(25, 37))
    site.write()


def log_grown(site: Site) -> None:
    site.put("Other", range(25, 40))
    site.write()


def watermark_damaged(site: Site) -> None:
    path = site.output.state / "watermark"
    path.write_bytes(b"\x55" * path.stat().st_size)


def rebuild_killed(site: Site) -> None:
    """Before its first part was in place: the exchange of names failed."""
    config = DispatcherConfig(site.output.store, site.output.root)
    with Faults(site.output.root, 0, "EIO") as calls:
        rebuild(config, threading.Event(), build=sparkless)
    (number, *_) = [n for n, (name, _) in enumerate(calls.made, 1) if name == "renameat2"]
    with Faults(site.output.root, number, "EIO"), suppress(StoreError):
        rebuild(config, threading.Event(), build=sparkless)
    assert (site.output.root / ASIDE_DIRECTORY / SWAP_JOURNAL_FILE).exists()


def index_gone(site: Site) -> None:
    shutil.rmtree(site.output.root / "index")


def damaged_record(site: Site) -> None:
    """In a log that grows, with a group beyond it."""
    first = len(site.offsets)
    site.put("Orders", range(25, 40))
    site.plain.put(site.offsets[first + 3][1], struct.pack(">i", 0))
    site.write()
    (site.output.store / "config").mkdir()
    table = {"offsetTable": {"Orders@g": {"0": 35}}}
    (site.output.store / "config" / "consumerOffset.json").write_text(json.dumps(table))
    site.output.start()


def group_beyond(site: Site) -> None:
    (site.output.store / "config").mkdir()
    table = {"offsetTable": {"Orders@g": {"0": 99}}}
    (site.output.store / "config" / "consumerOffset.json").write_text(json.dumps(table))


BROKEN: dict[str, Callable[[Site], None]] = {
    "messages_in_no_queue": log_grown,
    "entries_missing": queues_gone,
    "entries_missing: a queue": one_queue_gone,
    "entries_missing: units": units_zeroed,
    "entries_missing: index": index_gone,
    "run_ended": run_killed,
    "log_cut": log_cut,
    "watermark_damaged": watermark_damaged,
    "killed_rebuild": rebuild_killed,
    "positions_moved": damaged_record,
    "offsets_beyond_queues": group_beyond,
}


def followed(call: Call, site: Site) -> Iterator[str]:
    """Follow the doctor until nothing is wrong; the first state of each look."""
    for _ in range(MOST_COMMANDS):
        done = call("doctor", site.output.store, "--output", site.output.root, "--json")
        found = json.loads(done.stdout)
        if done.returncode == 0:
            return
        wrong = [one["state"] for one in found["finds"] if one["state"] != "quarantined"]
        yield wrong[0]
        assert found["next"] is not None, found
        name, *words = shlex.split(found["next"])
        assert name == "reput"
        healed = call(*words)
        assert healed.returncode in (0, 1), healed.stderr
        assert "Traceback" not in healed.stderr
    pytest.fail(f"still wrong: {found}")


@pytest.mark.parametrize("name", BROKEN)
def test_whoever_follows_the_doctor_ends_with_a_sound_output(
    tmp_path: Path, call: Call, name: str
) -> None:
    """It names the state first, reads only, and at the end every entry is what the log says."""
    site = built(tmp_path)
    BROKEN[name](site)
    before = tree(site.output.root)
    call("doctor", site.output.store, "--output", site.output.root)
    assert tree(site.output.root) == before
    states = list(followed(call, site))
    assert states[0] == name.partition(":")[0]
    assert site.output.verify().differences == ()
    ours = tree(site.output.root / "consumequeue")
    if name != "positions_moved":
        assert ours == tree(site.fresh().root / "consumequeue")
    assert ours


def test_a_log_that_begins_beyond_the_watermark_is_told_first(tmp_path: Path, call: Call) -> None:
    """Retention took messages that no run had dispatched."""
    site = built(tmp_path)
    site.expire(site.plain.end + LOG_FILE_SIZE)
    site.put("Other", range(25, 200))
    site.write()
    done = call("doctor", site.output.store, "--output", site.output.root, "--json")
    find = json.loads(done.stdout)["finds"][0]
    assert find["state"] == "log_cut"
    assert f"the log begins at {site.first}, beyond the watermark" in find["text"]
    assert [*followed(call, site)] == ["log_cut"]
    assert site.output.verify().differences == ()


def test_a_sound_output_and_a_store_without_queues(tmp_path: Path, call: Call) -> None:
    """Nothing is wrong with the one; the other is told to run."""
    site = built(tmp_path)
    done = call("doctor", site.output.store, "--output", site.output.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing is wrong")
    new = tmp_path / "new"
    done = call("doctor", site.output.store, "--output", new)
    assert (done.returncode, new.exists()) == (1, False)
    assert done.stdout.splitlines()[-1] == (
        f"next: reput run {site.output.store} --output {new} --once"
    )
    assert_one_line(call("doctor", tmp_path / "none"), 1, "none")


def test_what_no_command_heals_is_said(tmp_path: Path, call: Call) -> None:
    """A file of the log that is missing."""
    site = Site(tmp_path)
    site.put("Orders", range(120))
    site.write()
    site.output.start()
    files = sorted((site.output.store / "commitlog").iterdir())
    files[1].unlink()
    done = call("doctor", site.output.store, "--output", site.output.root)
    assert done.returncode == 1
    assert "files of the log are missing: [4096, 8192)" in done.stdout
