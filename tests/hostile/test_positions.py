"""Positions and settings from anywhere: case 23 of the threat model, and 25 and 26, code."""

from __future__ import annotations

import ast
import inspect
import json
import os
import stat
from pathlib import Path

import pytest

from reput.checkpoints.spark_checkpoint import (
    MAX_FILE_BYTES,
    DamagedCheckpointError,
    pin_start,
    read_position,
    read_start,
)
from reput.cli.serve import serve
from reput.store import configjson, jsontext
from reput.store.files import LEDGER_FILE, SPARK_START_FILE, STATE_DIRECTORY
from reput.store.privatecache import private_directory
from reput.store.state.built import BuildRecord
from reput.store.state.ledger import Ledger, LedgerEntry, read_counts
from reput.store.state.logoffset import offset_json, parse_offset
from reput.store.state.watermark import read_watermark
from tests.hostile.stores import sound_log
from tests.support.small_store import SmallStore

STORE = "0" * 32
DEEP = "[" * 200_000
OFFSETS: dict[str, str] = {
    "deep": DEEP,
    "deep objects": '{"a":' * 100_000,
    "a number of 5,000 nines": '{"offset":' + "9" * 5000 + "}",
    "a text": json.dumps(offset_json(STORE, 7) | {"offset": "7"}),
    "2^70": json.dumps(offset_json(STORE, 1 << 70)),
    "negative": json.dumps(offset_json(STORE, -1)),
    "a float": json.dumps(offset_json(STORE, 7) | {"offset": 7.0}),
    "yes": json.dumps(offset_json(STORE, 1) | {"offset": True}),
    "NaN": '{"offset": NaN, "store": "' + STORE + '", "crc": NaN}',
    "a list": "[7]",
    "nothing": "",
    "zeros": "\0" * 100,
    "another store's": json.dumps(offset_json("f" * 32, 7)),
    "another CRC": json.dumps(offset_json(STORE, 7) | {"crc": 0}),
    "half of a surrogate pair": '{"store": "\\ud800", "offset": 7, "crc": 1}',
}


@pytest.mark.parametrize("case", OFFSETS)
def test_case_23_offsets_that_are_none(tmp_path: Path, case: str) -> None:
    """None, wherever an offset is read; a checkpoint with it is damaged, and is moved aside."""
    text = OFFSETS[case]
    assert parse_offset(text, STORE) is None
    pin_start(tmp_path, tmp_path, STORE, 0)
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text('{"id":"x"}')
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{text}")
    with pytest.raises(DamagedCheckpointError):
        read_position(tmp_path, STORE)
    (tmp_path / SPARK_START_FILE).write_text(text)
    assert read_start(tmp_path, STORE) is None


FILES = ("metadata", "offsets/0", "commits/0", SPARK_START_FILE)
KINDS = ("100 MB", "a pipe", "a directory", "a device", "deep", "a deep second line")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_case_23_checkpoint_files_that_are_none(tmp_path: Path, name: str, kind: str) -> None:
    """None is read or waited for; the start goes on at the watermark."""
    store = SmallStore(tmp_path, sound_log())
    store.output.start()
    spark = store.output.state / "spark"
    for directory in ("offsets", "commits"):
        (spark / directory).mkdir(parents=True)
    (spark / "metadata").write_text('{"id":"x"}')
    found = read_watermark(store.output.state)
    assert found is not None
    line = json.dumps(offset_json(found.store_id, store.end))
    (spark / "offsets" / "0").write_text(f"v1\n{{}}\n{line}")
    pin_start(spark, spark, found.store_id, 0)
    if name != SPARK_START_FILE:
        (spark / "commits" / "0").write_text("v1\n{}")
    assert read_position(spark, found.store_id) is not None
    path = spark / name
    path.unlink(missing_ok=True)
    match kind:
        case "100 MB":
            with path.open("wb") as file:
                file.truncate(100 << 20)
        case "a pipe":
            os.mkfifo(path)
        case "a directory":
            path.mkdir()
        case "a device":
            path.symlink_to("/dev/zero")
        case "deep":
            path.write_text(DEEP)
        case "a deep second line":
            path.write_text(f"v1\n{DEEP}\n")
    notes = store.output.start()
    assert any("spark checkpoint is not usable" in note for note in notes)
    store.check()
    assert MAX_FILE_BYTES < 100 << 20


LINES = {
    "deep": DEEP.encode(),
    "a text for a number": b'{"physical_offset":"1","end_physical_offset":2,"reason":"x"}',
    "a list for a reason": b'{"physical_offset":1,"end_physical_offset":2,"reason":["x"]}',
    "a list for a topic": b'{"physical_offset":1,"end_physical_offset":2,"reason":"x","topic":[]}',
    "no end": b'{"physical_offset":1,"reason":"x"}',
    "a list": b"[1]",
    "nothing": b"",
    "noise": b"\xff\x01\x80",
}


@pytest.mark.parametrize("case", LINES)
def test_case_23_ledger_lines_that_are_none(tmp_path: Path, case: str) -> None:
    """Counted as damaged, kept as evidence, and in nobody's way."""
    entry = LedgerEntry(5, 9, "bad_magic", "Topic", 1)
    (tmp_path / LEDGER_FILE).write_bytes(LINES[case] + b"\n" + entry.to_json().encode() + b"\n")
    assert {(one.reason, one.ranges) for one in read_counts(tmp_path)} == {
        ("bad_magic", 1), ("damaged_line", 1),
    }  # fmt: skip
    ledger = Ledger(tmp_path)
    assert not ledger.add(entry)
    assert ledger.add(LedgerEntry(6, 9, "bad_magic"))
    ledger.sync()
    ledger.truncate(6)
    assert (tmp_path / LEDGER_FILE).read_bytes().startswith(LINES[case] + b"\n")


def test_case_23_json_that_is_deep(tmp_path: Path) -> None:
    """A value or ValueError, by the one function that all of them call."""
    for parse in (jsontext.parse, configjson.parse, BuildRecord.from_json):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse(DEEP)
    assert tmp_path.exists()


def test_case_25_servers_listen_to_this_machine_alone() -> None:
    """Unless told otherwise (tests/serving/test_hostile.py has what clients may send)."""
    defaults = [p.default for p in inspect.signature(serve).parameters.values()]
    listening = [value for value in defaults if isinstance(value, str) and ":" in value]
    assert listening
    assert all(value.startswith("127.0.0.1:") for value in listening)


PRODUCT = (
    "store", "filters", "sources", "sinks", "readers", "serving", "checkpoints", "overlay",
    "streaming", "upkeep", "workload", "reput",
)  # fmt: skip
EXECUTING = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}


def test_case_26_no_data_is_code() -> None:
    """No module reads pickles, and none evaluates text."""
    root = Path(__file__).parent.parent.parent
    for path in (path for name in PRODUCT for path in (root / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id} & {"eval", "exec"}
            assert not names & (EXECUTING | {"eval", "exec"}), path


def test_case_26_compiled_code_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are kept where only this user writes, also if the directory was open before, and
    never in a store or output."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "reput" / "kernels").mkdir(parents=True, mode=0o777)
    directory = private_directory("kernels")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    store = SmallStore(tmp_path, sound_log())
    store.output.start()
    files = {path.suffix for path in store.output.root.rglob("*") if path.is_file()}
    assert not files & {".nbi", ".nbc", ".pyc", ".so"}
    assert not directory.is_relative_to(store.output.root / STATE_DIRECTORY)
