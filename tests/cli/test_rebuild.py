"""``reput diff`` and ``reput rebuild`` as they are called: what is printed, exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.state.built import topic_begins
from reput.streaming.config import DispatcherConfig
from tests.support.cli import Call, json_object, reput_json
from tests.support.golden import tree
from tests.support.sparkless import dispatch

Golden = Callable[[str], Path]


@pytest.fixture
def changed(golden: Golden, tmp_path: Path) -> tuple[Path, Path]:
    """A golden store, and a copy whose unit 10 of one queue is another."""
    store = golden("plain")
    copy = shutil.copytree(store, tmp_path / "copy")
    queue = copy / "consumequeue" / "Topic_1" / "0" / ("0" * 20)
    data = bytearray(queue.read_bytes())
    data[207] ^= 1
    queue.write_bytes(data)
    return store, copy


def test_diff_of_equal_stores(golden: Golden, call: Call) -> None:
    """Exit code 0, what was compared, no byte changed."""
    store = golden("plain")
    before = tree(store)
    done = call("diff", store, store)
    assert done.returncode == 0, done.stderr
    assert "24 compared, equal" in done.stdout
    assert tree(store) == before
    assert reput_json("diff", store, store) == {
        "equal": True,
        "compared": {"consumequeue": 24, "index": 1},
        "differences": [],
    }


def test_diff_leaves_the_checkpoint_to_those_who_ask(
    golden: Golden, tmp_path: Path, call: Call
) -> None:
    """Its times do not follow from the log; asked for, they are a difference."""
    store = golden("broker")
    copy = shutil.copytree(store, tmp_path / "copy")
    with (copy / "checkpoint").open("r+b") as file:
        file.seek(7)
        file.write(b"\x01")
    assert call("diff", store, copy).returncode == 0
    assert call("diff", store, copy, "--only", "checkpoint").returncode == 1


def test_diff_names_the_unit(changed: tuple[Path, Path], call: Call) -> None:
    """Exit code 1; the same in both forms."""
    done = call("diff", *changed, "--json")
    assert done.returncode == 1, done.stderr
    (found,) = json.loads(done.stdout)["differences"]
    assert (found["kind"], found["place"], found["entry"]) == (
        "consumequeue", "Topic_1/0", "unit 10",
    )  # fmt: skip
    assert found["left"]["offset"] ^ found["right"]["offset"] == 1
    assert found["left"]["size"] == found["right"]["size"]
    shown = call("diff", *changed)
    assert shown.returncode == 1
    assert "unit 10" in shown.stdout
    assert "24 compared, 1 differs" in shown.stdout
    assert call("diff", *changed, "--only", "index,checkpoint").returncode == 0


def test_diff_of_queues_with_files_of_other_sizes_names_the_sizes(
    golden: Golden, tmp_path: Path, call: Call
) -> None:
    """The same units in files of 100 each."""
    store, other = golden("plain"), tmp_path / "other"
    queue = Path("consumequeue") / "Topic_1" / "0"
    (file,) = (store / queue).iterdir()
    units = file.read_bytes()
    used = len(units.rstrip(b"\0"))
    (other / queue).mkdir(parents=True)
    for start in range(0, used, 2000):
        part = units[start : start + 2000]
        (other / queue / f"{start:020d}").write_bytes(part + bytes(2000 - len(part)))
    done = call("diff", store, other, "--only", "consumequeue", "--json")
    (found,) = [
        one for one in json.loads(done.stdout)["differences"] if one["place"] == "Topic_1/0"
    ]
    assert found["entry"] == "file size"
    assert (found["left"], found["right"]) == ({"bytes": len(units)}, {"bytes": 2000})


def test_indexes_that_are_left_out_are_not_asked_for_their_slots(
    golden: Golden, call: Call
) -> None:
    """plain has 5,000 hash slots and mixed 1,000; their queues can be compared all the same."""
    stores = (golden("plain"), golden("mixed"))
    refused = call("diff", *stores)
    assert refused.returncode == 2
    assert "maxHashSlotNum" in refused.stderr
    assert "--only" in refused.stderr
    compared = call("diff", *stores, "--only", "consumequeue")
    assert (compared.returncode, compared.stderr) == (1, "")
    assert "compared" in compared.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["diff", "STORE", "NOWHERE"], "is not a directory"),
        (["diff", "EMPTY", "EMPTY"], "holds consumequeue or"),
        (["diff", "STORE", "STORE", "--only", "queues"], "choose from consumequeue, "),
        (["rebuild", "STORE", "--only", "checkpoint"], "--only names 'checkpoint'"),
        (["rebuild", "STORE", "--topic", "a/b"], "no topic a/b in "),
        (["rebuild", "STORE", "--dry-run", "--drop-old"], "excludes --dry-run"),
        (["rebuild", "STORE", "--sealed", "--executors"], "leave out --executors"),
    ],
)
def test_wrong_calls(
    golden: Golden, tmp_path: Path, arguments: list[str], part: str, call: Call
) -> None:
    """One line, exit code 2, nothing made or changed."""
    store = golden("plain")
    (tmp_path / "EMPTY").mkdir()
    before = tree(tmp_path)
    names = {"STORE": store, "EMPTY": tmp_path / "EMPTY", "NOWHERE": tmp_path / "NOWHERE"}
    done = call(*(names.get(argument, argument) for argument in arguments))
    lines = [line for line in done.stderr.splitlines() if line.startswith("reput: error: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert part in lines[0]
    assert tree(tmp_path) == before
    assert not (tmp_path / "NOWHERE").exists()


@pytest.mark.parametrize("options", [[], ["--drop-old"]])
def test_a_store_that_is_not_there_may_come_later(
    tmp_path: Path, call: Call, options: list[str]
) -> None:
    """As that of a broker which has not started yet: no wrong call, and nothing is made."""
    nowhere = tmp_path / "nowhere"
    done = call("rebuild", nowhere, *options)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"there is no directory {nowhere}" in done.stderr
    assert not nowhere.exists()


@pytest.mark.usefixtures("spark")
def test_the_begin_of_one_topic_leaves_those_of_others(
    golden: Golden, tmp_path: Path, call: Call
) -> None:
    """A begin of 0 forgets that of its topic."""
    store, output = golden("plain"), tmp_path / "output"
    dispatch(DispatcherConfig(store, output, once=True))
    begins = [
        ("Topic_0", 5000, {"Topic_0": 5000}),
        ("Topic_1", 9000, {"Topic_0": 5000, "Topic_1": 9000}),
        ("Topic_0", 0, {"Topic_1": 9000}),
    ]
    for topic, begin, wanted in begins:
        done = call("rebuild", store, "--output", output, "--topic", topic, "--from", str(begin))
        assert done.returncode == 0, done.stderr
        assert topic_begins(output) == wanted


@pytest.mark.usefixtures("spark")
def test_rebuild_says_what_differed_and_what_it_kept(
    changed: tuple[Path, Path], call: Call
) -> None:
    """A dry run ends with 1 and changes nothing; then it is done, and the copy is as the store."""
    store, copy = changed
    dry = call("rebuild", copy, "--dry-run")
    assert dry.returncode == 1, dry.stderr
    for part in ("unit 10", "24 compared, 1 differ", "a dry run"):
        assert part in dry.stdout
    done = json_object(call("rebuild", copy, "--json"))
    assert (done["messages"], done["replaced"], done["equal"]) == (3170, True, False)
    assert done["kept"] == [
        str(copy / f"{name}.replaced-1")
        for name in ("consumequeue", "index", "checkpoint", "reput")
    ]
    assert call("diff", store, copy, "--only", "consumequeue,index").returncode == 0
    assert sorted(json_object(call("rebuild", copy, "--drop-old", "--json"))["removed"]) == sorted(
        done["kept"]
    )
