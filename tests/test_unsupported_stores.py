"""Stores of DLedger and RocksDB are refused in one line, by every command and both sources.

Layouts are made plainly here; tests/interop holds the same against stores of real brokers.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from reput.cli import app
from reput.sources.commitlog import CommitLogDataSource
from reput.sources.consumequeue import ConsumeQueueDataSource
from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from reput.store.state.built import hash_slot_count
from reput.store.unsupported import DLEDGER_ENTRY_PREFIX, is_dledger_entry
from reput.workload.appender import Appender
from tests.support.cli import Call
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.golden import difference, tree, unpack_golden

DOUBLE_WRITE = "rocksdbCQDoubleWriteEnable=true\n"

REFUSED_CONFS = {
    "enableDLegerCommitLog=true": ("enableDLegerCommitLog", "controller mode"),
    "enableDLegerCommitLog=TRUE": ("enableDLegerCommitLog", "controller mode"),
    "storeType=defaultRocksDB": ("'defaultRocksDB'", "storeType=default"),
    "storeType=DefaultRocksdb": ("'DefaultRocksdb'", "storeType=default"),
    "storeType= defaultRocksDB ": ("'defaultRocksDB'", "storeType=default"),
    "configManagerVersion=v2": ("configManagerVersion", "config/topics.json"),
    "configManagerVersion=v2 ": ("configManagerVersion", "config/topics.json"),
    DOUBLE_WRITE + "combineCQLoadingCQTypes=defaultRocksDB": ("combineCQLoadingCQTypes",),
    DOUBLE_WRITE + "combineCQUseRocksdbForLmq=true\nenableMultiDispatch=true": (
        "combineCQUseRocksdbForLmq", "enableMultiDispatch=false",
    ),
}  # fmt: skip

READ_CONFS = (
    "enableDLegerCommitLog=false",
    "enableDLegerCommitLog=yes",  # false to Java
    "enableDLegerCommitLog=true ",  # so is this
    "storeType=Default",
    "storeType=other",  # only one name means RocksDB
    "configManagerVersion=v1",
    DOUBLE_WRITE,
    DOUBLE_WRITE + "combineCQLoadingCQTypes=defaultRocksDB; default",
    DOUBLE_WRITE + "combineCQLoadingCQTypes=DEFAULT;defaultRocksDB",
    DOUBLE_WRITE + "combineCQPreferCQType=defaultRocksDB",
    DOUBLE_WRITE + "combineCQUseRocksdbForLmq=true",  # there are no light queues
    "combineCQUseRocksdbForLmq=true\nenableMultiDispatch=true",  # nothing is in RocksDB
    "indexRocksDBEnable=true\ntimerRocksDBEnable=true\ntransRocksDBEnable=true",
)

DIRECTORIES = {
    "dledger-n0/index/": ("dledger-n0", "enableDLegerCommitLog=false"),
    "consumequeue/CURRENT": ("consumequeue", "storeType=default"),
    "consumequeue_rocksdb/CURRENT": ("consumequeue_rocksdb", "storeType=default"),
    "config/rdb/CURRENT": ("rdb", "configManagerVersion=v1"),
}
"""The mark of a store of such a kind -> the words of the error."""

COMMANDS: dict[str, tuple[object, ...]] = {
    "run": ("--once",), "status": (), "top": (), "expire": (), "verify": (), "get": ("T", 0, 0),
    "tail": ("T",), "query": ("T", "--key", "k"), "search-time": ("T", 0, 0),
    "trace": ("ID",), "doctor": (),
    "sql": ("select 1",), "export": ("out",), "rebuild": (), "shadow": ("--output", "out"),
    "produce": ("--count", 1),
    "inspect record": (0,), "inspect queue": ("T", 0), "inspect checkpoint": (),
    "lag": (), "serve": ("--listen", "127.0.0.1:0"), "groups list": (), "groups show": ("g",),
    "groups reset": ("g", "-t", "T", "--earliest"), "groups skip": ("g", "-t", "T"),
    "groups clone": ("g", "h", "-t", "T"), "checkpoints list": (), "checkpoints show": (0,),
    "checkpoints verify": (), "checkpoints rewind": ("--to-offset", 0), "checkpoints prune": (),
    "overlay handover": ("out",),
}  # fmt: skip
"""Every command that is given a store, and the rest of its arguments."""


def make_store(root: Path, conf: str = "", place: str = "") -> Path:
    """An empty store, with a file or a directory (``/`` at its end) in it."""
    (root / "commitlog").mkdir(parents=True)
    if conf:
        (root / "broker.conf").write_text(conf)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    if place.endswith("/"):
        (root / place).mkdir(parents=True)
    elif place:
        (root / place).write_bytes(b"MANIFEST-000005\n")
    return root


def refusal(root: Path) -> str:
    """The one line with which a store is refused."""
    with pytest.raises(UsageError) as caught:
        read_store_settings(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("conf", REFUSED_CONFS)
def test_a_store_that_states_its_kind_is_refused(conf: str, tmp_path: Path) -> None:
    """The setting, the file, what to do."""
    root = make_store(tmp_path / "store", conf)
    found = refusal(root)
    for part in (str(root / "broker.conf"), *REFUSED_CONFS[conf]):
        assert part in found
    # a store of DLedger has no commitlog at all
    (root / "commitlog").rmdir()
    assert refusal(root) == found


@pytest.mark.parametrize("conf", READ_CONFS)
def test_a_store_whose_files_are_whole_is_read(conf: str, tmp_path: Path) -> None:
    """Settings near to the refused ones that leave log, queues and topics where they always are."""
    root = make_store(tmp_path / "store", conf)
    assert read_store_settings(root).commit_log_directories == (root / "commitlog",)


@pytest.mark.parametrize("place", DIRECTORIES)
def test_a_store_without_its_settings_is_known_by_its_directories(
    place: str, tmp_path: Path
) -> None:
    """The directory, and the setting that says that it counts no more; which then is believed."""
    root = make_store(tmp_path / "store", "mappedFileSizeConsumeQueue=6000\n", place)
    found = refusal(root)
    name, settles = DIRECTORIES[place]
    assert str(next(root.rglob(name))) in found
    assert settles in found
    (root / "broker.conf").write_text(settles)
    assert read_store_settings(root).root == root
    with pytest.raises(UsageError, match=name):
        hash_slot_count([make_store(tmp_path / "output", place=place)])


def test_queues_written_twice_are_files_beside_rocksdb(tmp_path: Path) -> None:
    """They are not refused where the settings say so."""
    root = make_store(tmp_path / "store", DOUBLE_WRITE, "consumequeue/CURRENT")
    assert read_store_settings(root).root == root


def dledger_entry(index: int, position: int, body: bytes) -> bytes:
    """An entry as the table in store/unsupported.py has it."""
    size = DLEDGER_ENTRY_PREFIX.size + len(body)
    return struct.pack(">iiqqqiiii", 1, size, index, 0, position, 0, 0, 0, len(body)) + body


def test_a_dledger_log_given_as_a_commitlog_is_known_by_its_bytes(tmp_path: Path) -> None:
    """By its newest file that holds anything: older ones may be from before DLedger."""
    root = make_store(tmp_path / "store")
    body = bytes.fromhex("0000005bdaa320a7").ljust(91, b"\0")
    log = root / "commitlog"
    (log / f"{0:020d}").write_bytes(body.ljust(4096, b"\0"))
    assert read_store_settings(root).root == root
    (log / f"{4096:020d}").write_bytes(dledger_entry(7, 4096, body).ljust(4096, b"\0"))
    (log / f"{8192:020d}").write_bytes(bytes(4096))
    assert f"{log / f'{4096:020d}'} begins with a DLedger entry at physical offset 4096" in refusal(
        root
    )


def test_the_newest_file_of_several_directories_tells_their_log(tmp_path: Path) -> None:
    """It may be in any of them, and what has a file's name without being one tells nothing."""
    paths = [tmp_path / name for name in ("a", "b")]
    root = make_store(tmp_path / "store", f"storePathCommitLog={paths[0]},{paths[1]}\n")
    entry = dledger_entry(7, 4096, b"x" * 91).ljust(4096, b"\0")
    plain = bytes.fromhex("0000005bdaa320a7").ljust(4096, b"\0")
    for newest, other in (paths, paths[::-1]):
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        (other / f"{0:020d}").write_bytes(plain)
        (newest / f"{4096:020d}").write_bytes(entry)
        (other / f"{8192:020d}").mkdir()
        assert "begins with a DLedger entry at physical offset 4096" in refusal(root)


def test_an_entry_is_known_by_its_sizes_and_position() -> None:
    """Each of them alone decides; a record never is one."""
    sound = dledger_entry(3, 4096, b"x" * 91)
    assert is_dledger_entry(sound[:48], 4096)
    assert not is_dledger_entry(sound[:47], 4096)
    assert not is_dledger_entry(sound, 8192)
    for position in (0, 4, 24, 44):
        damaged = bytearray(sound)
        damaged[position + 3] ^= 1
        assert not is_dledger_entry(bytes(damaged), 4096)


def commands(command: Any, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every command of the command line, and the names of its parameters."""
    if hasattr(command, "commands"):
        for part, child in command.commands.items():
            yield from commands(child, f"{name} {part}".strip())
    else:
        yield name, {parameter.name for parameter in command.params}


def test_every_command_refuses(tmp_path: Path, call: Call) -> None:
    """Exit code 2, nothing on stdout, nothing changed; ``diff`` of an output too."""
    stores = {name for name, given in commands(typer.main.get_command(app)) if "store" in given}
    assert stores == set(COMMANDS)
    root = make_store(tmp_path / "store", "storeType=defaultRocksDB\n")
    before = tree(root)
    calls = [[*name.split(), root, *rest] for name, rest in COMMANDS.items()]
    for words in [*calls, ["diff", root, root]]:
        done = call(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "storeType in" in done.stderr, words
    assert tree(root) == before


@pytest.mark.parametrize("source", [CommitLogDataSource, ConsumeQueueDataSource])
def test_both_sources_refuse_at_load(source: Any, tmp_path: Path) -> None:
    """``schema`` is what Spark calls first, on the driver."""
    root = make_store(tmp_path / "store", place="dledger-n1/index/")
    with pytest.raises(UsageError, match="dledger-n1 is a DLedger log"):
        source({"path": str(root)}).schema()


def test_nothing_is_appended_to_such_a_store(tmp_path: Path) -> None:
    """The appender would make a second log beside DLedger's."""
    root = tmp_path / "store"
    (root / "dledger-n0" / "index").mkdir(parents=True)
    before = tree(root)
    with pytest.raises(UsageError, match="DLedger"), Appender(root):
        pass
    assert tree(root) == before


ROCKSDB = ("storeType=defaultRocksDB", "{0}combineCQLoadingCQTypes=defaultRocksDB")


@pytest.mark.parametrize("conf", ROCKSDB)
def test_queues_are_built_beside_a_store_that_has_them_in_rocksdb(
    tmp_path: Path, conf: str
) -> None:
    """As the error says: its log is linked into a new store, with its topics and the setting."""
    store = unpack_golden("batch", tmp_path)
    sound = (store / "broker.conf").read_text()
    (store / "broker.conf").write_text(f"{sound}\n{conf.format(DOUBLE_WRITE)}\n")
    assert "to build queue files from its log, link commitlog/ into a new store" in refusal(store)
    new = tmp_path / "new"
    (new / "config").mkdir(parents=True)
    (new / "commitlog").symlink_to(store / "commitlog")
    shutil.copy(store / "config" / "topics.json", new / "config")
    (new / "broker.conf").write_text(f"{sound}\nstoreType=default\n")
    output = DerivedOutput(new, tmp_path / "output")
    output.start()
    for kind in QUEUE_TREES:
        assert difference(output.root / kind, store / kind) == []


def test_topics_that_were_in_rocksdb_are_read_from_an_export(tmp_path: Path) -> None:
    """A topic of batch queues is one again once both steps are done, and not before."""
    store = unpack_golden("batch", tmp_path)
    conf, topics = store / "broker.conf", store / "config" / "topics.json"
    sound, exported = conf.read_text(), topics.read_text()
    topics.unlink()
    conf.write_text(sound + "\nconfigManagerVersion=v2\n")
    assert "write config/topics.json from what mqadmin exportMetadata gives" in refusal(store)
    topics.write_text(exported)
    assert f"then state configManagerVersion=v1 in {conf}" in refusal(store)
    conf.write_text(sound + "\nconfigManagerVersion=v1\n")
    output = DerivedOutput(store, tmp_path / "output")
    output.start()
    for kind in QUEUE_TREES:
        assert difference(output.root / kind, store / kind) == []


@pytest.mark.parametrize("has_light", [True, False])
def test_light_queues_in_rocksdb_are_built_or_left_out(tmp_path: Path, has_light: bool) -> None:
    """Each of both ways gives the other queues as they are."""
    store = unpack_golden("lmq", tmp_path)
    conf, key = store / "broker.conf", "combineCQUseRocksdbForLmq"
    sound = conf.read_text()
    conf.write_text(f"{sound}\n{DOUBLE_WRITE}{key}=true\n")
    advice = f"with {key}=false to build them as files, or enableMultiDispatch=false to leave them"
    assert advice in refusal(store)
    changed = (key, "false") if has_light else ("enableMultiDispatch", "false")
    conf.write_text(re.sub(rf"(?m)^{changed[0]}=.*$", "=".join(changed), conf.read_text()))
    output = DerivedOutput(store, tmp_path / "output")
    output.start()
    built, kept = (tree(root / "consumequeue") for root in (output.root, store))
    light = {name for name in kept if name.startswith("%LMQ%")}
    assert light
    assert built == {name: kept[name] for name in kept if has_light or name not in light}
