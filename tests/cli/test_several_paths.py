"""A log over several directories: every command reads all of it, or says which one is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.test_errors import assert_one_line
from tests.cli.test_read import messages_of
from tests.support.cli import Call, json_object
from tests.support.golden import difference
from tests.support.several_paths import spread, state_paths


def test_readers_print_what_they_print_of_one_directory(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """Each message of a topic, keys, times, rows: on a golden store as it is, then spread out."""
    store = golden("plain")
    stored = messages_of(store, "Topic_1")
    key = next(key for m in stored for key in m.values.get("KEYS", "").split())
    commands: list[tuple[object, ...]] = [
        ("get", store, "Topic_1", 0, 0),
        ("get", store, "Topic_1", 0, 7),
        ("tail", store, "Topic_1", "--count", len(stored)),
        ("query", store, "Topic_1", "--key", key),
        ("search-time", store, "Topic_1", 0, stored[len(stored) // 2].record.store_timestamp),
        ("sql", store, 'select topic, sum("storeSize") from messages group by 1 order by 1'),
        ("inspect", "queue", store, "Topic_1", 0, "--count", 500, "--json"),
        *(("inspect", "record", store, m.record.physical_offset, "--json") for m in stored[::40]),
    ]  # fmt: skip

    def printed() -> list[object]:
        texts = []
        for command in commands:
            done = call(*command)
            assert done.returncode == 0, done.stderr
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            for line in lines:
                if isinstance(line, dict):
                    line.pop("file", None)  # where it lies is not compared
            texts.append(lines)
        call("export", store, tmp_path / f"rows-{len(list(tmp_path.iterdir()))}")
        return texts

    before = printed()
    spread(store, [tmp_path / "second", tmp_path / "old"], read_only=1)
    assert len(list((store / "commitlog").iterdir())) < 4
    assert printed() == before
    one, other = (pq.read_table(path) for path in sorted(tmp_path.glob("rows-*")))
    assert one.num_rows > 3000
    assert one.sort_by("physicalOffset").equals(other.sort_by("physicalOffset"))


@pytest.mark.usefixtures("spark")
def test_what_is_read_is_said(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """``run`` and ``status`` name the property file and every directory, or that there is none."""
    store, output = golden("plain"), tmp_path / "output"
    directories = spread(store, [tmp_path / "second", tmp_path / "old"], read_only=1)
    done = call("run", store, "--output", output, "--once")
    assert done.returncode == 0, done.stderr
    assert f"settings: broker_conf={store / 'broker.conf'}\n" in done.stderr
    for directory in directories:
        assert f"reading commitlog: directory={directory}\n" in done.stderr
    assert difference(output / "consumequeue", store / "consumequeue") == []
    found = json_object(call("status", store, "--output", output, "--json"))
    assert found["broker_conf"] == str(store / "broker.conf")
    assert found["commit_log_directories"] == list(map(str, directories))
    assert (found["log_end"], found["lag_bytes"]) == (found["watermark"], 0)
    other = tmp_path / "other.conf"
    other.write_bytes((store / "broker.conf").read_bytes())
    (store / "broker.conf").unlink()
    shown = call("status", store, "--output", output, "--broker-conf", other).stdout
    assert f"settings     {other}\n" in shown
    assert f"commitlog    {', '.join(map(str, directories))}\n" in shown
    alone = json_object(call("status", store, "--consume-queue-file-size", 6000, "--json"))
    assert alone["broker_conf"] is None
    assert alone["commit_log_directories"] == [str(directories[0])]
    shown = call("status", store, "--consume-queue-file-size", 6000).stdout
    assert "settings     no broker.conf, RocketMQ's defaults\n" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--once"), ("rebuild",), ("verify",), ("status",), ("expire",),
        ("tail", "Topic_1"), ("get", "Topic_1", "0", "0"), ("query", "Topic_1", "--key", "k"),
        ("search-time", "Topic_1", "0", "0"), ("sql", "select 1"), ("export", "{0}/rows"),
        ("inspect record", "0"), ("inspect queue", "Topic_1", "0"), ("produce", "--count", "1"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_a_copied_store_is_told_what_to_do(
    golden: Callable[[str], Path], tmp_path: Path, call: Call, command: tuple[str, ...]
) -> None:
    """Its broker.conf names the original's directories; its own log does not stand for them."""
    store = golden("plain")
    state_paths(store, [store / "commitlog", tmp_path / "gone"])
    name, *rest = command
    done = call(*name.split(), store, *(part.format(tmp_path) for part in rest))
    assert_one_line(
        done, 1, f"cannot read commitlog directory {tmp_path / 'gone'}", "storePathCommitLog in",
        str(store / "broker.conf"), "copied or moved", "--broker-conf",
    )  # fmt: skip
    if name not in ("run", "rebuild", "produce"):
        sound = tmp_path / "sound.conf"
        sound.write_text((store / "broker.conf").read_text().replace(f",{tmp_path / 'gone'}", ""))
        given = (*(part.format(tmp_path) for part in rest), "--broker-conf", sound)
        again = call(*name.split(), store, *given)
        # a broker's queues are not expired, and no message has the key
        code = {"expire": 2, "query": 1}.get(name, 0)
        assert (again.returncode, "cannot read" in again.stderr) == (code, False)


def test_the_appender_refuses_a_log_that_lies_elsewhere(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """It would begin a second log beside the one that is stated."""
    store = golden("plain")
    directories = spread(store, [tmp_path / "second"])
    done = call("produce", store, "--count", 1)
    assert_one_line(done, 2, *map(str, directories), "has the log in")
    state_paths(store, directories[1:])
    assert_one_line(call("produce", store, "--count", 1), 2, "has the log in")
