"""A broker's JSON: integer keys without quotes, and the backup of a file cut short."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from reput.store import configjson
from reput.store.errors import NotReadyError, StoreError


def test_integer_keys_become_texts_and_nothing_else_changes() -> None:
    """As fastjson writes consumerOffset.json; strings that look like keys stay."""
    text = '{\n\t"offsetTable":{"t@g":{0:17,\n 1 :-3,-2:[1,2]},"{5:":"a,6:\\",7:"}, "x":[{8:9}]}'
    assert configjson.parse(text) == {
        "offsetTable": {"t@g": {"0": 17, "1": -3, "-2": [1, 2]}, "{5:": 'a,6:",7:'},
        "x": [{"8": 9}],
    }


def test_plain_json_is_not_changed(tmp_path: Path) -> None:
    """Braces and colons inside of texts, and escapes."""
    text = json.dumps({"a": [1, {"b": "{1:2}"}], "c": "\t中"})
    (tmp_path / "topics.json").write_text(text, "utf-8")
    assert configjson.read(tmp_path / "topics.json") == json.loads(text)


def test_what_fastjson_reads_besides() -> None:
    """Names without quotes, texts in single quotes and commas after the last member; what looks
    like them inside of texts stays. What has no end is no document."""
    text = """{topic:'T',\n $x_1 : 'a"b\\'c{d:e,}' ,"f":["g,]'h'",'\\u00e4\\n',],'i':{},}"""
    assert configjson.parse(text) == {
        "topic": "T", "$x_1": "a\"b'c{d:e,}", "f": ["g,]'h'", "ä\n"], "i": {},
    }  # fmt: skip
    for broken in ("{a:T}", "{a-b:1}", "'a", "{'a:1}", "{'a':'b\\'}", "[1,2", "{a:1}}"):
        with pytest.raises(ValueError):
            configjson.parse(broken)


@pytest.mark.parametrize("broken", [None, "", '{"a":', "\0\0"])
def test_the_backup_stands_in(tmp_path: Path, broken: str | None) -> None:
    """Missing, empty, cut short: the ``.bak`` is taken; without one, missing is None."""
    path = tmp_path / "topics.json"
    if broken is not None:
        path.write_text(broken)
    if broken:
        with pytest.raises(NotReadyError, match=r"topics\.json is not whole"):
            configjson.read(path)
    else:
        assert configjson.read(path) is None
    (tmp_path / "topics.json.bak").write_text("{1:2}")
    assert configjson.read(path) == {"1": 2}


def test_a_file_is_read_whole_while_a_broker_overwrites_it(tmp_path: Path) -> None:
    """``MixAll.string2File``: the old text to ``.bak``, then the new one in place, a piece at a
    time here. Every document that is read is one that was written, never half of one or none, and
    never an older one than before."""
    path, stop = tmp_path / "topics.json", threading.Event()

    def write(target: Path, text: str) -> None:
        with target.open("w", buffering=1) as file:
            for line in text.splitlines(keepends=True):
                file.write(line)

    def text(number: int) -> str:
        table = {f"topic{index}": {"attributes": {}} for index in range(50)}
        return json.dumps({"topicConfigTable": table, "counter": number}, indent=1)

    def overwrite() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write(path.with_name("topics.json.bak"), path.read_text())
            write(path, text(number))

    write(path, text(0))
    broker = threading.Thread(target=overwrite)
    broker.start()
    try:
        counters: list[int] = []
        # on a busy machine all of them may fall between two documents
        while len(counters) < 300 or len(set(counters)) == 1:
            counters.append(configjson.read(path)["counter"])  # type: ignore[index]
    finally:
        stop.set()
        broker.join()
    assert counters == sorted(counters)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits for a broker take no time; how long they would be."""
    slept = list[float]()
    monkeypatch.setattr(configjson.time, "sleep", slept.append)
    return slept


def test_what_cannot_be_read_is_told_from_what_is_not_whole(
    tmp_path: Path, unhurried: list[float]
) -> None:
    """No time mends the first, which is said of the file itself; a backup stands in for both."""
    path, backup = tmp_path / "topics.json", tmp_path / "topics.json.bak"
    path.mkdir()
    backup.write_text('{"a":')
    with pytest.raises(StoreError, match=rf"^cannot read {path}: Is a directory$") as caught:
        configjson.read(path)
    assert not isinstance(caught.value, NotReadyError)
    assert caught.value.path == str(path)
    backup.write_text("{1:2}")
    assert configjson.read(path) == {"1": 2}
    path.rmdir()
    backup.unlink()
    backup.mkdir()
    path.write_text('{"a":')
    with pytest.raises(NotReadyError, match=rf"^{path} is not whole: "):
        configjson.read(path)
    path.unlink()
    with pytest.raises(StoreError, match="Is a directory"):
        configjson.read(path)
    assert sum(unhurried) < 10


def test_a_file_that_is_written_during_a_read_is_read_again(
    tmp_path: Path, unhurried: list[float]
) -> None:
    """It may look whole all the same: between two pieces of one text there may be the end of the
    one before. It is waited for as long as a broker takes, and its backup is older."""
    path, reads = tmp_path / "topics.json", list[int]()
    texts = ['{"a":1}', "", '{"a":', '{"a":2}']
    path.with_name("topics.json.bak").write_text('{"a":0}')
    path.write_text(texts[0])

    def broker(_: float) -> None:
        reads.append(len(reads))
        path.write_text(texts[min(len(reads), 3)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configjson.time, "sleep", broker)
        statuses, fstat = list[int](), os.fstat

        def changing(fd: int) -> os.stat_result:
            statuses.append(fd)
            if len(statuses) == 2:
                os.utime(path, (1, 1))
            return fstat(fd)

        patch.setattr(configjson.os, "fstat", changing)
        assert configjson.read(path) == {"a": 2}
    assert len(reads) == 3
    assert unhurried == []
    path.write_text("")
    assert configjson.read(path) == {"a": 0}
    assert len(unhurried) == configjson.TRIES - 1
