"""The command that an error or an answer advises is followed as it is printed, in the state that
prints it, and leads to a sound output."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.readers.stores import SmallStore
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records, tree

TOPIC = "Topic_0"
COMMAND = re.compile(
    r"reput (?:rebuild|verify|run|status|checkpoints list|inspect record) /\S+(?: \d+)?"
    r"(?: --[a-z-]+(?: (?:/\S+|\d+|index|earliest|Topic\w*))?)*"
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


def test_a_damaged_queue_beside_a_log_without_settings(ram_path: Path, call: Call) -> None:
    """RocketMQ's defaults were assumed and are right; what is named then repairs the queue."""
    small = SmallStore(ram_path / "store")
    for _ in range(5):
        small.append()
    store = small.write()
    shutil.rmtree(store / "consumequeue")
    (store / "broker.conf").unlink()
    output = DerivedOutput(store, ram_path / "output")
    output.start()
    path = output.root / "consumequeue" / "Topic" / "0" / f"{0:020}"
    sound = path.read_bytes()
    with path.open("r+b") as queue:
        queue.seek(40)
        queue.write(b"\x01")
    done = call("verify", store, "--output", output.root)
    assert done.returncode == 1
    assert "were assumed; if the broker has others, give --broker-conf\n" in done.stdout
    follow(call, done.stdout, 2)
    assert path.read_bytes() == sound
    assert call("verify", store, "--output", output.root).returncode == 0


def test_settings_that_were_not_found(golden: Callable[[str], Path], call: Call) -> None:
    """A broker's store whose property file lies elsewhere: with it nothing differs."""
    store = golden("ext")
    assert call("verify", store).returncode == 0
    conf = (store / "broker.conf").rename(store.with_name("broker.conf"))
    done = call("verify", store)
    assert done.returncode != 0
    assert "--broker-conf" in done.stdout + done.stderr
    assert call("verify", store, "--broker-conf", conf).returncode == 0


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


def cut_a_queue(root: Path) -> None:
    """A queue's file is too short."""
    with (root / "consumequeue" / TOPIC / "1" / f"{0:020}").open("r+b") as queue:
        queue.truncate(30)


def cut_an_index_file(root: Path) -> None:
    """An index file is too short."""
    path = min((root / "index").iterdir())
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage_one", "asked"),
    [
        (cut_a_queue, ("get", TOPIC, "1", "0")),
        (cut_an_index_file, ("query", TOPIC, "--key", "nowhere")),
    ],
)
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_single_damaged_file(
    ram_path: Path,
    call: Call,
    damage_one: Callable[[Path], None],
    asked: tuple[str, ...],
    *,
    is_ours: bool,
) -> None:
    """Verify names what heals it, in an output as in a broker's own store."""
    built = (DerivedOutput.build if is_ours else DerivedOutput.unpack)("plain", ram_path)
    root = built.root if is_ours else built.store
    place: tuple[object, ...] = ("--output", root) if is_ours else ()
    sound = tree(root / "consumequeue")
    damage_one(root)
    name, *words = asked
    done = call(name, built.store, *words, *place)
    assert done.returncode == 1
    assert "is damaged, reput verify names the command that heals it" in done.stderr
    done = call("verify", built.store, *place)
    assert done.returncode == 1
    follow(call, done.stdout, 2 if is_ours else 1)
    assert tree(root / "consumequeue") == sound
    done = call(name, built.store, *words, *place)
    # no message has the key that is asked for
    assert (done.returncode, "names the command" in done.stderr) == (name == "query", False)
    assert call("verify", built.store, *place).returncode == 0


def test_a_watermark_that_is_damaged(ram_path: Path, call: Call) -> None:
    """Both its slots: the queues are compared, and a run goes on."""
    output = DerivedOutput.build("plain", ram_path)
    path = output.state / "watermark"
    path.write_bytes(bytes(path.stat().st_size))
    run = ("run", output.store, "--output", output.root, "--once")
    done = call(*run)
    assert (done.returncode, "both slots" in done.stderr) == (1, True)
    follow(call, done.stderr)
    assert call(*run).returncode == 0
    assert call("verify", output.store, "--output", output.root).returncode == 0


@pytest.mark.parametrize("name", ["list", "verify", "rewind"])
def test_positions_of_a_brokers_store(golden: Callable[[str], Path], call: Call, name: str) -> None:
    """It has none before it is taken over."""
    store = golden("plain")
    ask = ("checkpoints", name, store, *(("--to-offset", 0) if name == "rewind" else ()))
    done = call(*ask)
    assert (done.returncode, "has no watermark" in done.stderr) == (2, True)
    follow(call, done.stderr)
    assert call(*ask).returncode == 0


def test_what_is_mistyped(ram_path: Path, call: Call) -> None:
    """A topic, a queue and a batch that are not there: the command shows those that are."""
    output = DerivedOutput.build("plain", ram_path)
    offsets = output.store / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"Topic_0@billing":{0:1}}}')
    reset = ("groups", "reset", output.store, "billing", "--topic")
    for place in ((), ("--output", output.root)):
        for command in (
            ("get", output.store, "Topic_77", 0, 0),
            ("get", output.store, TOPIC, 77, 0),
            ("tail", output.store, "Topic_77"),
            ("query", output.store, "Topic_77", "--key", "k"),
            ("search-time", output.store, TOPIC, 77, 0),
            ("status", output.store, "--topic", "Topic_77"),
            ("rebuild", output.store, "--topic", "Topic_77"),
            ("inspect", "queue", output.store, "Topic_77", 0),
            ("inspect", "queue", output.store, TOPIC, 77),
            (*reset, "Topic_77", "--earliest"),
            (*reset, TOPIC, "--queue", 77, "--offset", 0),
        ):
            done = call(*command, *place)
            assert done.returncode in (1, 2), command
            follow(call, done.stderr)
    for command in (("checkpoints", "show", output.store, 77), ("diff", output.store, "--since")):
        words = ("batch:77",) if command[-1] == "--since" else ()
        done = call(*command, *words, "--output", output.root)
        assert (done.returncode, "no batch 77" in done.stderr) == (1, True), done.stderr
        follow(call, done.stderr)


def test_units_beyond_the_log(golden: Callable[[str], Path], call: Call) -> None:
    """A log that lost its last messages."""
    store = golden("plain")
    log_end = max(one.physical_offset + one.total_size for one in log_records(store))
    with max((store / "commitlog").iterdir()).open("r+b") as log:
        log.seek(log_end % 262144 - 2000)
        log.write(bytes(2000))
    done = call("status", store)
    assert "with units beyond the log's end" in done.stdout
    follow(call, done.stdout)
    done = call("status", store)
    assert (done.returncode, "beyond the log's end" in done.stdout) == (0, False)
    assert call("verify", store).returncode == 0


def test_queue_offsets_that_begin_again(ram_path: Path, call: Call) -> None:
    """The queues are given to the messages that RocketMQ drops."""
    small = SmallStore(ram_path / "store")
    offsets = [small.append(queue_offset=number) for number in (0, 1, 2, 3, 1, 2)]
    output = DerivedOutput(small.write(), ram_path / "output")
    output.start()
    status = ("status", output.store, "--output", output.root)
    done = call(*status)
    assert f"2 messages from physical offset {offsets[4]} on are in no queue" in done.stdout
    follow(call, done.stdout)
    done = call(*status)
    assert (done.returncode, "begin again" in done.stdout) == (0, False)
    units = (output.root / "consumequeue" / "Topic" / "0" / f"{0:020}").read_bytes()
    assert int.from_bytes(units[20:28], "big") == offsets[4]


def test_queue_offsets_that_begin_again_in_many_queues(ram_path: Path, call: Call) -> None:
    """Ten are shown, and the others are counted."""
    small = SmallStore(ram_path / "store")
    for queue_id in range(25):
        for number in (0, 1, 1):
            small.append(queue_id=queue_id, queue_offset=number)
    output = DerivedOutput(small.write(), ram_path / "output")
    output.start()
    status = ("status", output.store, "--output", output.root)
    lines = [line for line in call(*status).stdout.splitlines() if line.startswith("begin again")]
    assert [line.split(":")[0] for line in lines[:-1]] == [
        f"begin again topic Topic queue {queue_id}" for queue_id in range(10)
    ]
    assert lines[-1] == "begin again 15 queues more; --json lists them"
    assert len(json_object(call(*status, "--json"))["repeated"]) == 25


@pytest.mark.parametrize("name", ["verify", "run"])
def test_a_log_that_was_cut_and_settings_that_changed(
    ram_path: Path, call: Call, name: str
) -> None:
    """Both are said at once, and following both heals it."""
    output = DerivedOutput.build("plain", ram_path)
    with max((output.store / "commitlog").iterdir()).open("r+b") as log:
        log.seek(log_records(output.store)[-1].physical_offset % 262144)
        log.write(bytes(1000))
    place = (output.store, "--output", output.root)
    done = call(name, *place, "--on-queue-gap", "blank")
    assert done.returncode == 2
    assert "run the dispatcher, which cuts the queues where the log was cut" in done.stderr
    assert "leave it out or give the same value" in done.stderr
    assert call("run", *place, "--once").returncode == 0
    assert call("verify", *place).returncode == 0


def test_a_message_whose_record_is_damaged(golden: Callable[[str], Path], call: Call) -> None:
    """It is looked at."""
    store = golden("plain")
    with min((store / "commitlog").iterdir()).open("r+b") as log:
        log.write(bytes(20))
    asked = [
        call("get", store, f"Topic_{topic}", queue, 0) for topic in range(6) for queue in range(4)
    ]
    done = next(one for one in asked if one.returncode)
    assert "is lost or damaged, at physical offset 0" in done.stderr
    follow(call, done.stderr)


def test_a_spark_session_is_what_runs_use(spark: SparkSession) -> None:
    """Otherwise each command here would start a JVM."""
    assert spark.sparkContext.master.startswith("local")
