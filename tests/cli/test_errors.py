"""Bad calls and bad input: one clear line, the right exit code, no traceback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership
from reput.store.brokerlock import BrokerLock
from tests.streaming.test_golden import dispatch
from tests.support.cli import REPUT, ROOT, Call, reput, without_java
from tests.support.derived_output import DerivedOutput
from tests.support.processes import holder


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """One line that says what, where and what to do."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("reput: error: ")]
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in lines[0]


def test_no_store(tmp_path: Path) -> None:
    """A path that is not there."""
    done = reput("run", tmp_path / "nowhere", "--once")
    assert_one_line(done, 1, "there is no directory", str(tmp_path / "nowhere"))


def test_directory_that_is_no_store(tmp_path: Path, call: Call) -> None:
    """A directory without a commitlog; nothing is created in it."""
    done = call("run", tmp_path, "--once")
    assert_one_line(done, 1, "no commitlog in", str(tmp_path), "give a store's root")
    assert list(tmp_path.iterdir()) == []


def test_commitlog_file_of_another_size(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """The file, its size, the size wanted, the option to set."""
    store = golden("plain")
    victim = sorted((store / "commitlog").iterdir())[2]
    with victim.open("r+b") as out:
        out.truncate(1000)
    done = call("run", store, "--output", tmp_path / "out", "--once")
    assert_one_line(done, 1, str(victim), "1000 bytes", "262144", "mappedFileSizeCommitLog")


def test_size_that_the_log_contradicts(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """A flag that does not fit the files names both."""
    done = call(
        "run", golden("plain"), "--output", tmp_path / "o", "--commitlog-file-size", "1m", "--once"
    )
    assert_one_line(done, 1, "262144", "1048576", "--commitlog-file-size")


@pytest.mark.extended
def test_a_store_is_looked_at_before_java_starts(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The java of this test only notes that it was started, which a sound store shows."""
    noted, java = tmp_path / "started", tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n: > '{noted}'\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    store, missing = golden("plain"), tmp_path / "nowhere"
    topics = store / "config" / "topics.json"
    sound = topics.read_text()
    topics.write_text(sound[:-5])
    assert_one_line(reput("run", missing, "--once"), 1, str(missing))
    assert_one_line(reput("run", store, "--output", tmp_path / "o", "--once"), 1, str(topics))
    assert_one_line(reput("rebuild", missing, "--output", tmp_path / "o"), 1, str(missing))
    assert not noted.exists()
    topics.write_text(sound)
    for command in ("run", "rebuild"):
        done = reput(command, store, "--output", tmp_path / "o")
        assert_one_line(done, 1, "java ended with 3")
        assert noted.exists()
        noted.unlink()


def test_an_output_is_looked_at_before_java_starts(
    golden: Callable[[str], Path], ram_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A refusal that files alone decide: contradicted settings, another's queues, another writer,
    a topic that is not there."""

    def never(*_: object) -> None:
        raise AssertionError("Java would be started")

    for name in ("run", "rebuild"):
        monkeypatch.setattr(f"reput.cli.{name}.started", never)
    store, output = golden("plain"), DerivedOutput.build("plain", ram_path)
    place = (output.store, "--output", output.root)
    with pytest.raises(AssertionError, match="Java would"):
        call("run", *place, "--once")
    assert_one_line(call("run", store, "--once"), 2, "did not build", "--adopt")
    done = call("run", *place, "--once", "--on-queue-gap", "blank")
    assert_one_line(done, 2, "onQueueGap=rocketmq", "--on-queue-gap says blank")
    done = call("rebuild", *place, "--topic", "Topic_7777")
    assert_one_line(done, 2, "no topic Topic_7777")

    def owned() -> Ownership:
        return Ownership(output.root).__enter__()

    def locked() -> BrokerLock:
        (output.root / "reput" / "owner.json").unlink()
        return BrokerLock(output.root).__enter__()

    for take, words in ((owned, "another dispatcher (process "), (locked, "is held by process ")):
        with holder(take) as pid:
            for command in (("run", *place, "--once"), ("rebuild", *place)):
                assert_one_line(call(*command), 1, words, str(pid))


def test_queues_of_another_size(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """An output that was built with another consume queue file size."""
    store = golden("plain")
    output = tmp_path / "output"
    shutil.copytree(store / "consumequeue", output / "consumequeue")
    done = call(
        "run", store, "--output", output, "--once", "--adopt",
        "--consume-queue-file-size", "12000",
    )  # fmt: skip
    assert_one_line(done, 2, "=6000", "12000", "--consume-queue-file-size")
    assert not (output / "reput").exists()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare from util-linux")
def test_read_only_output(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A file system that is mounted read-only."""
    store, output = golden("plain"), tmp_path / "output"
    output.mkdir()
    script = 'mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", output]
    done = subprocess.run(
        [*map(str, command), *REPUT, "run", str(store), "--output", str(output), "--once"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert_one_line(done, 1, "cannot create directory", str(output), "Read-only file system")


def test_targets_among_the_data_of_a_store(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """Every command that writes: refused before anything is made, there or elsewhere."""
    store, output = golden("plain"), tmp_path / "output"
    link = tmp_path / "link"
    link.symlink_to(store / "consumequeue")
    before = sorted(tmp_path.rglob("*"))
    for place, *arguments in (
        (store / "commitlog", "run", store, "--once", "--output"),
        (link, "run", store, "--once", "--output"),
        (store / "index" / "x", "run", store, "--output", output, "--once", "--checkpoint"),
        (store / "config" / "x", "run", store, "--output", output, "--once", "--delta"),
        (store / "commitlog", "rebuild", store, "--output"),
        (store / "commitlog", "rebuild", store, "--drop-old", "--output"),
        (store / "commitlog" / "x", "export", store),
        (store / "commitlog", "produce", "--count", 1),
        (store / "consumequeue" / "x", "demo", "--dir"),
    ):
        done = call(*arguments, place)
        assert_one_line(done, 2, str(place), "holds the data of a store", "outside of it")
        assert sorted(tmp_path.rglob("*")) == before


def test_output_path_is_a_file(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """A file where the output directory should be."""
    (tmp_path / "output").write_text("x")
    done = call("run", golden("plain"), "--output", tmp_path / "output", "--once")
    assert_one_line(done, 2, "is not a directory", str(tmp_path / "output"))


def test_queues_that_we_did_not_build(golden: Callable[[str], Path], call: Call) -> None:
    """RocketMQ's queues in the store itself are left alone unless told."""
    store = golden("plain")
    done = call("run", store, "--once")
    assert_one_line(done, 2, "did not build", "--adopt", "--output")


@pytest.mark.usefixtures("spark")
def test_second_dispatcher(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """The second one is told the first one's process id."""
    with Ownership(tmp_path / "output"):
        done = call("run", golden("plain"), "--output", tmp_path / "output", "--once")
    assert_one_line(done, 1, "another dispatcher", f"process {os.getpid()}", "--output")


@pytest.mark.usefixtures("spark")
def test_store_whose_broker_runs(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Its lock is held: not into this store, but tailing it elsewhere is the normal case."""
    store = golden("plain")
    shutil.rmtree(store / "consumequeue")
    with BrokerLock(store):
        done = reput("run", store, "--once")
        assert_one_line(done, 1, "is held by process", "broker", "--output")
        assert dispatch(store, tmp_path / "out").counts.messages > 0


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--latency", "soon"], "--latency is 'soon'"),
        (["--max-bytes-per-trigger", "-1"], "--max-bytes-per-trigger"),
        (["--replay-from", "yesterday"], "--replay-from is 'yesterday'"),
        (["--replay-from", "5"], "no record starts there"),
        (["--conf", "spark.master"], "--conf is 'spark.master'"),
    ],
)
def test_wrong_option_values(
    golden: Callable[[str], Path], tmp_path: Path, arguments: list[str], part: str, call: Call
) -> None:
    """The option and the value are named; exit code 2."""
    store, output = golden("plain"), tmp_path / "output"
    if arguments[1] == "5":
        dispatch(store, output)
    done = call("run", store, "--output", output, "--once", *arguments)
    assert_one_line(done, 2, part)


@pytest.mark.parametrize(
    "text", ['{"name": 1, "target": "t"}', '{"name": "a", "target": "t", "position": "7"}', "[1]"]
)
def test_damaged_state_of_a_follower(ram_path: Path, call: Call, text: str) -> None:
    """The file, what is wrong in it, what to do."""
    output = DerivedOutput.unpack("plain", ram_path)
    output.start()
    path = output.state / "followers" / "a.json"
    path.parent.mkdir()
    path.write_text(text)
    done = call("status", output.store, "--output", output.root)
    assert_one_line(done, 1, f"cannot read {path}", "remove it, then its position")
    path.unlink()
    assert call("status", output.store, "--output", output.root).returncode == 0


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "text",
    [
        "5", '[{"path": 5, "kept": "a", "inode": null}]',
        '[{"path": "index", "kept": "../a", "inode": null}]',
    ],
)  # fmt: skip
def test_damaged_journal_of_a_rebuild(
    golden: Callable[[str], Path], tmp_path: Path, call: Call, text: str
) -> None:
    """As a follower's state; nothing else is made."""
    path = tmp_path / "output" / ".reput-rebuild" / "swap.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for command in (("run", "--once"), ("rebuild",)):
        done = call(*command, golden("plain"), "--output", tmp_path / "output")
        assert_one_line(done, 1, f"cannot read {path}", "look at what is in", "then remove it")
    assert path.read_text() == text
    path.unlink()
    done = call("run", tmp_path / "plain", "--output", tmp_path / "output", "--once")
    assert done.returncode == 0


def test_broken_broker_conf(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """The key, the value and the file."""
    store = golden("plain")
    (store / "broker.conf").write_text("mappedFileSizeCommitLog=0\n")
    done = call("run", store, "--output", tmp_path / "o", "--once")
    assert_one_line(done, 2, "mappedFileSizeCommitLog", "'0'", str(store / "broker.conf"))


def test_missing_java(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Spark's own message says nothing that helps. The line does; test_commands.py has a run with
    JAVA_HOME alone."""
    done = subprocess.run(
        [*REPUT, "run", str(golden("plain")), "--output", str(tmp_path / "o"), "--once"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        env=without_java(tmp_path / "programs"),
    )  # fmt: skip
    assert_one_line(done, 1, "no java in PATH", "JDK 17", "or set JAVA_HOME")


def test_a_jvm_that_does_not_start(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The JVM says why; then our line, and no traceback of Spark's Python side."""
    done = reput(
        "run", golden("plain"), "--output", tmp_path / "o", "--once",
        "--conf", "spark.driver.memory=much",
    )  # fmt: skip
    assert_one_line(done, 1, "Spark does not start")
    assert "much" in done.stderr


@pytest.mark.extended
def test_a_spark_setting_that_is_wrong(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Spark's refusal at run time is one line too."""
    done = reput(
        "run", golden("plain"), "--output", tmp_path / "o", "--once",
        "--conf", "spark.scheduler.mode=NEVER",
    )  # fmt: skip
    assert_one_line(done, 1, "Spark does not start", "NEVER")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--onse"], ["--onse", "--once", "reput run --help"]),
        (["stauts"], ["'stauts'", "(did you mean 'status'?); ", "reput --help"]),
        (["search-time", "STORE", "T"], ["missing argument", "reput search-time --help"]),
        (
            ["inspect", "record", "STORE", "x"],
            ["it must be a whole number; ", "reput inspect record --help"],
        ),
        (["run", "STORE", "--on-corrupt", "skip"], ["--on-corrupt", "'skip'", "'quarantine'"]),
        (["tail", "STORE", "T", "--count", "-1"], ["--count", "greater than or equal to 0"]),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], parts: list[str], call: Call) -> None:
    """No frame: what is wrong, what is near, where to read on."""
    done = call(*arguments)
    assert_one_line(done, 2, *parts)
    assert len(done.stderr.splitlines()) == 1
    assert not re.search("Value error|Input should|[.?]; ", done.stderr)


@pytest.mark.parametrize("arguments", [[], ["inspect"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str], call: Call) -> None:
    """Help alone, and the exit code of a wrong call."""
    done = call(*arguments)
    assert done.returncode == 2
    assert "Commands" in done.stdout + done.stderr
    assert "error" not in done.stdout + done.stderr


def test_what_to_do_where_nothing_is_found(golden: Callable[[str], Path], call: Call) -> None:
    """A queue, an index that are not there: exit code 1, and where to look."""
    store = golden("broker")
    for arguments, part in (
        (("get", store, "Orders", 9, 0), "no queue 9 of topic Orders"),
        (("search-time", store, "Orders", 9, "1h"), "no queue 9 of topic Orders"),
        (("inspect", "queue", store, "Orders", 9), "no queue 9 of topic Orders"),
        (("query", store, "Orders", "--key", "k"), "no message of topic Orders with key k"),
    ):
        assert_one_line(call(*arguments), 1, part)


def test_iceberg_options_that_do_not_fit(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """No table, no catalog, one that cannot be used, a name that is none."""
    catalogs = tmp_path / "catalogs.toml"
    catalogs.write_text('[lake]\ntype = "hadoop"\n', "utf-8")
    table = ("--iceberg", "lake.db.t")
    for arguments, parts in (
        (("--iceberg-config", catalogs), ("need --iceberg CATALOG.NAMESPACE.TABLE",)),
        (("--iceberg-store-id", "a"), ("need --iceberg CATALOG.NAMESPACE.TABLE",)),
        (table, ("--iceberg-config FILE",)),
        ((*table, "--iceberg-config", catalogs), (str(catalogs), "rest or sql", "two writers")),
        (("--iceberg", "t", "--iceberg-config", catalogs), ("'t'",)),
        ((*table, "--iceberg-interval", "soon"), ("--iceberg-interval", "soon")),
    ):
        assert_one_line(call("run", golden("plain"), "--once", *arguments), 2, *parts)


def test_delta_options_that_do_not_fit(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """Columns without a table, columns that are none, a duration that is none."""
    columns = tmp_path / "columns.toml"
    columns.write_text('[T]\na = "money"\n', "utf-8")
    for arguments, parts in (
        (("--delta-schema", columns), ("--delta URL",)),
        (("--delta", tmp_path / "t", "--delta-schema", columns), (str(columns), "money", "double")),
        (("--delta", tmp_path / "t", "--delta-interval", "soon"), ("--delta-interval", "soon")),
        (("--delta-partition-by", "day"), ("--delta URL",)),
        (("--delta-sort-by", "topic"), ("--delta URL",)),
        (("--delta", tmp_path / "t", "--delta-partition-by", "month"), ("'month'", "queue(N)")),
        (("--delta", tmp_path / "t", "--delta-sort-by", "body"), ("'body'", "physicalOffset")),
        (("--delta", tmp_path / "t", "--delta-file-size", "x"), ("--delta-file-size", "'x'")),
        (("--include-internal",), ("--include-internal", "need --delta, --iceberg or")),
        (("--max-inflated-bytes", "1m"), ("--max-inflated-bytes", "need --delta, --iceberg or")),
        (
            ("--delta", tmp_path / "t", "--no-inflate-bodies", "--max-inflated-bytes", "1m"),
            ("not both",),
        ),
    ):
        assert_one_line(call("run", golden("plain"), "--once", *arguments), 2, *parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--kafka-topics", "A"], ["need --kafka HOST:PORT"]),
        (["--kafka", "h:1", "--no-kafka-mirror"], ["--kafka-arrivals TOPIC"]),
        (["--kafka", "h:1", "--kafka-topic-format", "x y"], ["'x y'", "{topic}"]),
        (["--kafka", "h:1", "--kafka-arrivals", "x y"], ["'x y'", "--kafka-arrivals"]),
        (["--kafka", "h:1", "--kafka-store-id", "a b"], ["'a b'", "letters"]),
        (["--kafka", "h:1", "--kafka-max-message-bytes", "x"], ["--kafka-max-message-bytes"]),
        (["--kafka", "h:1", "--kafka-config", "nowhere.toml"], ["nowhere.toml", "cannot be read"]),
    ],
)
def test_kafka_options_that_are_wrong(
    options: list[str], parts: list[str], tmp_path: Path, call: Call
) -> None:
    """The option and its value."""
    assert_one_line(call("run", tmp_path, *options), 2, *parts)


def test_kafka_config_sets_the_connection_alone(tmp_path: Path, call: Call) -> None:
    """Other settings are this program's."""
    config = tmp_path / "kafka.toml"
    config.write_text('security_protocol = "SSL"\nacks = 0\n')
    done = call("run", tmp_path, "--kafka", "h:1", "--kafka-config", config)
    assert_one_line(done, 2, str(config), "'acks'", "security_")
