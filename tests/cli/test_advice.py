"""The command that an error or an answer advises is followed as it is printed, in the state that
prints it, and leads to a sound output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.readers.stores import SmallStore
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree

TOPIC = "Topic_0"
COMMAND = re.compile(
    r"reput (?:rebuild|verify|run) /\S+(?: --[a-z-]+(?: (?:/\S+|index|earliest))?)*"
)
pytestmark = pytest.mark.usefixtures("spark")


def advised(text: str) -> list[list[str]]:
    """The commands in a text, as a shell takes them apart, without the program's name."""
    return [shlex.split(command)[1:] for command in COMMAND.findall(text)]


def follow(call: Call, text: str, count: int = 1) -> None:
    """Call what a text advises."""
    commands = advised(text)
    assert len(commands) == count, text
    for command in commands:
        done = call(*command)
        assert done.returncode == 0, (command, done.stderr)


def spoil(root: Path) -> None:
    """One unit of a queue leads elsewhere."""
    with (root / "consumequeue" / TOPIC / "0" / f"{0:020}").open("r+b") as queue:
        queue.seek(40)
        queue.write(b"\x01")


def damage(store: Path) -> None:
    """Some bytes of a file in the middle of the log are no records."""
    with sorted((store / "commitlog").iterdir())[3].open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 3000)


@pytest.mark.parametrize("options", [(), ("--repair",)])
def test_a_brokers_damaged_queue(
    golden: Callable[[str], Path], call: Call, options: tuple[str, ...]
) -> None:
    """One step heals it, whether verify was to repair or not."""
    store = golden("plain")
    sound = tree(store / "consumequeue")
    spoil(store)
    done = call("verify", store, *options)
    assert done.returncode == (2 if options else 1)
    follow(call, done.stdout + done.stderr)
    assert tree(store / "consumequeue") == sound
    assert call("verify", store).returncode == 0


def test_an_outputs_damaged_queue(ram_path: Path, call: Call) -> None:
    """Two steps: what differs is cut, and written again."""
    output = DerivedOutput.build("plain", ram_path)
    spoil(output.root)
    done = call("verify", output.store, "--output", output.root)
    assert done.returncode == 1
    follow(call, done.stdout, 2)
    assert call("verify", output.store, "--output", output.root).returncode == 0


def test_a_store_without_an_index(golden: Callable[[str], Path], call: Call) -> None:
    """The index alone is built; then it is asked."""
    store = golden("plain")
    names = {path.name for path in (store / "index").iterdir()}
    for path in (store / "index").iterdir():
        path.unlink()
    ask = ("query", store, TOPIC, "--key", "nowhere")
    done = call(*ask)
    assert (done.returncode, "no index in" in done.stderr) == (1, True)
    follow(call, done.stderr)
    assert len([*(store / "index").iterdir()]) == len(names)
    done = call(*ask)
    assert (done.returncode, "no index in" in done.stderr) == (1, False), done.stderr


def test_a_lost_ledger(ram_path: Path, call: Call) -> None:
    """The damage is listed again."""
    store = DerivedOutput.unpack("plain", ram_path).store
    damage(store)
    fresh = ram_path / "fresh"
    place = (store, "--output", fresh)
    assert call("run", *place, "--once").returncode == 0
    assert call("verify", *place).returncode == 0
    (fresh / "reput" / "quarantine.jsonl").unlink()
    done = call("verify", *place)
    assert done.returncode == 1
    follow(call, done.stdout)
    # jumps of queue offsets are listed by the repair that is advised next
    done = call("verify", *place)
    follow(call, done.stdout, 2)
    assert call("verify", *place).returncode == 0


def test_damage_in_a_brokers_log_names_no_file_that_never_was(
    golden: Callable[[str], Path], call: Call
) -> None:
    """A broker keeps no ledger. What is named exists, and holds the damage."""
    store = golden("plain")
    whole = tree(store)
    damage(store)
    missing = sorted((store / "commitlog").iterdir())[4]
    missing.unlink()
    done = call("verify", store)
    assert done.returncode == 1
    assert "2 damaged ranges of the log: " in done.stdout
    assert f"log file missing: 262,144 bytes from physical offset {int(missing.name)} on" in (
        done.stdout
    )
    assert "restore it from a copy" in done.stdout
    assert "quarantine" not in done.stdout + done.stderr
    assert advised(done.stdout + done.stderr) == []
    named = {Path(path) for path in re.findall(r" in (/\S+)", done.stdout)}
    assert named == {sorted((store / "commitlog").iterdir())[3]}
    for path in (*named, missing):
        path.write_bytes(whole[str(path.relative_to(store))])
    assert call("verify", store).returncode == 0


def test_a_group_that_nobody_knows(tmp_path: Path, call: Call) -> None:
    """A mistyped one is not made; the broker's own list and the offsets are what is known."""
    small = SmallStore(tmp_path / "store")
    small.append()
    store = small.write()
    (store / "config").mkdir(exist_ok=True)
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"Topic@payments":{0:1}}}')
    (store / "config" / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"shipping":{"groupName":"shipping"}}}'
    )
    reset = ("--topic", "Topic", "--earliest", "--apply")
    done = call("groups", "reset", store, "payment", *reset)
    assert done.returncode == 1
    assert "nobody knows a group payment (did you mean payments?)" in done.stderr
    assert "payment@" not in offsets.read_text()
    for group in (("payments",), ("shipping",), ("payment", "--new")):
        assert call("groups", "reset", store, *group, *reset).returncode == 0
        assert f"Topic@{group[0]}" in offsets.read_text()


def test_a_spark_session_is_what_runs_use(spark: SparkSession) -> None:
    """Otherwise each command here would start a JVM."""
    assert spark.sparkContext.master.startswith("local")
