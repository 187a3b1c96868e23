"""Bit maps of scanned runs: those of each record decoded plainly, by the plain filters."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from reput.filters import consumers
from reput.sources.bitmaps import BitMaps
from reput.store.config import read_store_settings
from reput.store.errors import StoreError, UsageError
from reput.store.files import CONSUMER_FILTER_FILE
from reput.store.log import java, properties, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.runs.dispatch import Run, Wanted
from reput.store.runs.scan import PackedChunk, runs_of, scan
from tests.filters.test_consumers import entry
from tests.support import wire

FILE_SIZE = 1 << 16
EXPRESSIONS = {
    "A": ("TAGS = 'TagA'", "a IS NULL OR KEYS = '3'"),
    "Topic": ("DELAY > 5", "TAGS = '标签😀' OR a = 'x'", "UNIQ_KEY IS NOT NULL"),
    "w" * 130: ("TRUE",),
}


def random_store(rng: random.Random, root: Path, messages: int) -> wire.PlainLog:
    """Messages of topics with and without filters, odd properties among them."""
    log = wire.PlainLog(FILE_SIZE)
    for _ in range(messages):
        log.append(**{**wire.random_fields(rng), "sys_flag": 0})
    log.write(root / "commitlog")
    topics = {
        topic: {
            "groupFilterData": {
                f"g{index}": entry(
                    expression=text,
                    bloomFilterData={"bitNum": 112, "bitPos": rng.sample(range(112), 3)},
                )
                for index, text in enumerate(expressions)
            }
        }
        for topic, expressions in EXPRESSIONS.items()
    }
    (root / "config").mkdir()
    (root / CONSUMER_FILTER_FILE).write_text(json.dumps({"filterDataByTopic": topics}))
    return log


def scanned(log: CommitLog, end: int) -> list[Run]:
    """The runs of everything."""
    found = []
    for item in scan(log, 0, end, extras=Wanted(details=True, bit_maps=True)):
        if isinstance(item, PackedChunk):
            found += runs_of(item)
    return found


def test_bit_maps_are_those_of_each_record(tmp_path: Path, seed: int) -> None:
    """The properties are random; topics without a filter have no bit maps."""
    plain = random_store(random.Random(seed), tmp_path, 3000)
    settings = read_store_settings(tmp_path)
    log = CommitLog(settings.commit_log_directories)
    runs = BitMaps(log, settings).added_to(scanned(log, plain.end))
    filters = consumers.from_json(json.loads((tmp_path / CONSUMER_FILTER_FILE).read_text()))
    seen = set()
    for run in runs:
        topic = java.decode(run.topic)
        assert (run.bit_maps is None) == (topic not in EXPRESSIONS)
        for index in range(len(run) if run.bit_maps is not None else 0):
            start, size = int(run.units["offset"][index]), int(run.units["size"][index])
            found = record.decode(plain.bytes_at((start, start + size)), start, start + size + 8)
            assert isinstance(found, Record)
            expected = filters.bit_map(topic, properties.as_texts(found.property_map))
            assert run.bit_maps[index].tobytes() == expected, f"{seed=} {start}"
            seen.add(expected)
    assert len(seen) > 5


def test_a_record_that_changed_is_said(tmp_path: Path, seed: int) -> None:
    """Nothing is taken from bytes that the scan has not seen."""
    plain = random_store(random.Random(seed), tmp_path, 200)
    settings = read_store_settings(tmp_path)
    log = CommitLog(settings.commit_log_directories)
    runs = [run for run in scanned(log, plain.end) if run.topic == b"Topic"]
    offset = int(runs[0].units["offset"][0])
    plain.put(offset + 4, b"\0\0\0\1")
    plain.write(tmp_path / "commitlog")
    with pytest.raises(StoreError, match=f"the record at {offset} changed while it was read"):
        BitMaps(log, settings).added_to(runs)


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize(
    ("conf", "is_right"),
    [
        ("", True),
        ("maxErrorRateOfBloomFilter=20\n", True),
        ("expectConsumerNumUseFilter=32\n", True),
        ("maxErrorRateOfBloomFilter=21\n", False),
        ("expectConsumerNumUseFilter=34\n", False),
        ("maxErrorRateOfBloomFilter=20\nexpectConsumerNumUseFilter=64\n", False),
    ],
)
def test_a_filter_file_that_contradicts_the_settings_is_refused(
    tmp_path: Path, seed: int, conf: str, is_right: bool, is_given: bool
) -> None:
    """One of the settings alone counts, with RocketMQ's default of the other: 20 %, 32 consumers,
    which make 112 bits."""
    random_store(random.Random(seed), tmp_path, 10)
    (tmp_path / "broker.conf").write_text(conf)
    settings = read_store_settings(tmp_path)
    document = json.loads((tmp_path / CONSUMER_FILTER_FILE).read_text()) if is_given else None
    log = CommitLog(settings.commit_log_directories)
    if is_right:
        BitMaps(log, settings, document)
        return
    with pytest.raises(UsageError, match=r"contradicts broker\.conf .*has 3 of 112 bits"):
        BitMaps(log, settings, document)


@pytest.mark.parametrize(
    ("topic", "given", "said"),
    [("t", {"bornTime": "x"}, "t/g: bornTime"), ("\ud800", {}, ".*surrogates not allowed")],
)
def test_a_filter_file_that_no_broker_wrote_is_named(
    tmp_path: Path, seed: int, topic: str, given: dict[str, object], said: str
) -> None:
    """With the place in it that is wrong; a topic may be no text at all."""
    random_store(random.Random(seed), tmp_path, 10)
    settings = read_store_settings(tmp_path)
    log = CommitLog(settings.commit_log_directories)
    path = tmp_path / CONSUMER_FILTER_FILE
    bits = {"bitNum": 112, "bitPos": [1, 2, 3]}
    groups = {"groupFilterData": {"g": entry(bloomFilterData=bits, **given)}}
    path.write_text(json.dumps({"filterDataByTopic": {topic: groups}}))
    with pytest.raises(UsageError, match=f"cannot use {path}: {said}"):
        BitMaps(log, settings)
