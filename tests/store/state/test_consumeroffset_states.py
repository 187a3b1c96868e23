"""Files of committed offsets that a broker, a crash or a hand has left in a rare state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reput.store import configjson
from reput.store.brokerlock import BrokerLock
from reput.store.errors import NotReadyError, OwnershipError, StoreError
from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.state.consumeroffset import (
    ConsumerOffsetFile,
    Offsets,
    SharedConsumerOffsetFile,
    TopicGroup,
    document_with,
    read_committed,
    topics_of,
)
from tests.support.processes import holder

KEY = TopicGroup("T", "g")


def put(root: Path, text: str, name: str = CONSUMER_OFFSET_FILE) -> Path:
    """The file, as a broker has it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def counter_of(data: bytes) -> int:
    found = re.search(rb'"counter":([0-9]+),', data)
    assert found is not None
    return int(found[1])


def test_a_broker_that_starts_meanwhile_has_its_offsets_to_itself(tmp_path: Path) -> None:
    """It keeps them in memory and writes the file every five seconds: who shares the store's own
    offsets commits no more, and leaves the file as it is when it ends."""
    with (
        pytest.raises(OwnershipError, match="a broker or dispatcher"),
        SharedConsumerOffsetFile(tmp_path, tmp_path) as file,
    ):
        file.update(lambda _: {KEY: {0: 1}})
        file.update(lambda _: {KEY: {0: 2}})
        # it outlives the block
        broker = holder(lambda: BrokerLock(tmp_path).__enter__())
        broker.__enter__()
        before = put(tmp_path, '{"offsetTable":{"T@g":{0:7}}}').read_bytes()
        for _ in range(2):
            with pytest.raises(OwnershipError, match="give an output of your own"):
                file.update(lambda _: {KEY: {0: 3}})
        put(tmp_path, before.decode())
    broker.__exit__(None, None, None)
    assert read_committed(tmp_path) == {KEY: {0: 7}}
    assert (tmp_path / CONSUMER_OFFSET_FILE).read_bytes() == before


def test_commits_stay_in_their_journal_where_a_broker_starts(tmp_path: Path) -> None:
    """The file is not replaced under it at the end, though the journal has commits for it."""
    broker = holder(lambda: BrokerLock(tmp_path).__enter__())
    with (
        pytest.raises(OwnershipError, match="a broker or dispatcher"),
        SharedConsumerOffsetFile(tmp_path, tmp_path) as file,
    ):
        file.update(lambda _: {KEY: {0: 1}})
        file.update(lambda _: {KEY: {0: 2}})
        before = (tmp_path / CONSUMER_OFFSET_FILE).read_bytes()
        broker.__enter__()
    assert (tmp_path / CONSUMER_OFFSET_FILE).read_bytes() == before
    broker.__exit__(None, None, None)
    assert read_committed(tmp_path) == {KEY: {0: 2}}


def test_a_file_that_a_broker_has_left_half_gives_way_to_its_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside journals of the file before it as without any: they belong to neither."""
    monkeypatch.setattr(configjson, "RETRY_SECONDS", 0.0)
    with ConsumerOffsetFile(tmp_path) as file:
        file.replace({KEY: {0: 1}}, 1)
        file.append({KEY: {0: 2}})
    assert read_committed(tmp_path) == {KEY: {0: 2}}
    path = put(tmp_path, '{"offsetTable":{"T@g":{0:')
    with pytest.raises(NotReadyError, match=r"consumerOffset\.json is not whole"):
        read_committed(tmp_path)
    put(tmp_path, '{"offsetTable":{"T@g":{0:7}}}', f"{CONSUMER_OFFSET_FILE}.bak")
    assert read_committed(tmp_path) == {KEY: {0: 7}}
    path.unlink()
    assert read_committed(tmp_path) == {KEY: {0: 7}}


@pytest.mark.parametrize("version", ["{}", "null", '{"counter":"7"}', '{"counter":1.5}'])
def test_a_counter_that_is_no_number_begins_anew(tmp_path: Path, version: str) -> None:
    """RocketMQ does not read it; the offsets beside it count, and it grows from then on."""
    path = put(tmp_path, f'{{"dataVersion":{version},"offsetTable":{{"T@g":{{0:7}}}}}}')
    with ConsumerOffsetFile(tmp_path) as file:
        offsets = file.load(tmp_path)
        assert offsets == {KEY: {0: 7}}
        file.replace(offsets, 3)
        assert counter_of(path.read_bytes()) == 3
        file.replace(offsets, 0)
        assert counter_of(path.read_bytes()) == 4


def test_a_text_with_one_offset_that_is_another(tmp_path: Path) -> None:
    """All others stay, and the counter grows as with every file."""
    assert configjson.parse(document_with(tmp_path, KEY, 1, 5).decode()) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0},
        "offsetTable": {"T@g": {"1": 5}},
    }
    other = TopicGroup("U", "h")
    path = put(tmp_path, '{"dataVersion":{"counter":41},"offsetTable":{"T@g":{0:7,1:2},"U@h":{}}}')
    data = document_with(tmp_path, KEY, 1, 5)
    assert counter_of(data) == 42
    path.write_bytes(data)
    assert read_committed(tmp_path) == {KEY: {0: 7, 1: 5}, other: {}}


@pytest.mark.parametrize("key", ["@g", "T@", "T", "@", ""])
def test_a_key_that_lacks_its_topic_or_group_is_named(tmp_path: Path, key: str) -> None:
    """Nobody could be given its offsets, and the next file would not have them."""
    put(tmp_path, f'{{"offsetTable":{{"{key}":{{0:7}}}}}}')
    with pytest.raises(StoreError, match=f"the key '{key}' of offsetTable is not TOPIC@GROUP"):
        read_committed(tmp_path)


def test_topics_of_a_group_are_sorted() -> None:
    """A group of a longer name has others, and so have the broadcasting consumers of this one."""
    keys = [("b", "g"), ("c", "gg"), ("a", "g"), ("d", "g@broadcast"), ("%RETRY%g", "g")]
    offsets: Offsets = {TopicGroup(*key): {} for key in keys}
    assert topics_of(offsets, "g") == ["%RETRY%g", "a", "b"]
    assert topics_of(offsets, "h") == []
