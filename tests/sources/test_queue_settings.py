"""Options of a read of queues that say what the store is, and where each queue's read ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.options import boolean, one_of, parse_size, positive
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import UsageError
from reput.store.log.record import SCHEDULE_TOPIC
from tests.readers.stores import LOG_FILE_SIZE, QUEUE_FILE_SIZE, SmallStore
from tests.sources.test_advised_options import read_log, read_queues
from tests.sources.test_queue_rows import batch_reader, rows_of
from tests.support.golden import tree

FIRST_MS = 1_700_000_000_000
COUNT = 40


def store_of(root: Path) -> SmallStore:
    """A message each second in two queues, in small files."""
    small = SmallStore(root)
    for number in range(COUNT):
        small.append(queue_id=number % 2, store_timestamp=FIRST_MS + number * 1000, body=bytes(200))
    small.write()
    return small


def test_ends_by_time_are_those_of_each_queue(tmp_path: Path) -> None:
    """They are exclusive, and overridden by one time for all; a queue whose messages are all older
    is read to its end."""
    store_of(tmp_path)

    def counts(**options: object) -> list[int]:
        rows = rows_of(batch_reader(tmp_path, **options))
        return [sum(row["queueId"] == number for row in rows) for number in (0, 1)]

    def ends(*seconds: int) -> str:
        times = {str(number): FIRST_MS + at * 1000 for number, at in enumerate(seconds)}
        return json.dumps({"Topic": times})

    for first, second, expected in ((4, 4, [2, 2]), (5, 5, [3, 2]), (0, 99, [0, 20])):
        assert counts(endingOffsetsByTimestamp=ends(first, second)) == expected
    by_queue = {"endingOffsetsByTimestamp": ends(4, 6)}
    assert counts(**by_queue, endingOffsets='{"Topic": {"0": 9, "1": 9}}') == [2, 3]
    assert counts(**by_queue, endingTimestamp=FIRST_MS + 2000) == [1, 1]
    assert counts(**by_queue, startingOffsetsByTimestamp=ends(2, 5)) == [1, 1]
    with pytest.raises(UsageError, match="OffsetsByTimestamp does not name topic Topic queue 1;"):
        counts(endingOffsetsByTimestamp='{"Topic": {"0": 5}}')
    with pytest.raises(UsageError, match="before its start at 3"):
        counts(**by_queue, startingOffsets='{"Topic": {"0": 3, "1": 0}}')


@pytest.mark.parametrize(
    "key", ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp",
            "endingOffsetsByTimestamp"],
)  # fmt: skip
def test_topics_that_offsets_name_are_asked_for(golden: Callable[[str], Path], key: str) -> None:
    """RocketMQ's own are so, by any of the options, and queues that are named must exist."""
    store, own = golden("broker"), SCHEDULE_TOPIC.decode()
    whole = {"includeInternal": "true", "path": str(store)}
    offsets: dict[str, dict[str, int]] = {}
    for row in rows_of(batch_reader(store, **whole)):
        queue = offsets.setdefault(row["topic"], {})
        queue[str(row["queueId"])] = 0 if key.startswith("starting") else 1 << 41
    if key == "endingOffsets":
        offsets = {topic: dict.fromkeys(queues, -1) for topic, queues in offsets.items()}
    assert own in offsets
    total = read_queues(store, {"includeInternal": "true"})
    assert read_queues(store, {}) < total
    assert read_queues(store, {key: json.dumps(offsets)}) == total
    options = ConsumeQueueOptions({"path": str(store), key: json.dumps(offsets)})
    assert options.names_queues
    assert options.row_form.named_topics == offsets.keys()


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_store_is_of_the_file_that_is_named(tmp_path: Path, is_elsewhere: bool) -> None:
    """Sizes of files stand there, or in options, which override it; by those of RocketMQ's defaults
    nothing can be read."""
    root = tmp_path / "store"
    store_of(root)
    conf = root / "broker.conf"
    conf.write_text(f"mappedFileSizeCommitLog={LOG_FILE_SIZE}\n" + conf.read_text())
    before, options = tree(root / "consumequeue"), {}
    if is_elsewhere:
        conf = conf.rename(tmp_path / "other.properties")
        options = {"brokerConf": str(conf)}
    assert read_log(root, options) == read_queues(root, options) == COUNT
    for key, right in (("mappedFileSizeCommitLog", LOG_FILE_SIZE),
                       ("mappedFileSizeConsumeQueue", QUEUE_FILE_SIZE)):  # fmt: skip
        sound = conf.read_text()
        conf.write_text(sound.replace(f"{key}={right}", f"{key}={2 * right}"))
        option = key.replace("mappedFileSizeC", "c").replace("ommitLog", "ommitLogFileSize")
        option = option.replace("onsumeQueue", "onsumeQueueFileSize")
        assert read_queues(root, {**options, option: str(right)}) == COUNT
        conf.write_text(sound)
    assert read_log(root, {**options, "commitLogFileSize": f"{LOG_FILE_SIZE >> 10}k"}) == COUNT
    assert tree(root / "consumequeue") == before


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("7b", 7), (" 64K ", 65536), ("3kb", 3072), ("2M", 2 << 20), ("1gb", 1 << 30),
     ("5T", 5 << 40)],
)  # fmt: skip
def test_sizes_are_powers_of_two(text: str, size: int) -> None:
    """As Java's and Spark's are."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0k", "-1", "1.5k", "1 k", "k", "1p", "1kk", "1\n2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Nothing and less than nothing, too."""
    with pytest.raises(ValueError, match="must be a number of bytes above 0"):
        parse_size(text)


def test_words_and_numbers_of_options_are_taken_in_any_case() -> None:
    """Spark hands over what somebody typed, or the text of a Python or Scala value."""
    for text, value in (("true", True), (" True", True), ("FALSE ", False), ("false", False)):
        assert boolean(text) is value
    assert one_of("error", "latest")(" Latest ") == "latest"
    assert positive(" 007 ") == 7
    for parse, text in ((boolean, ""), (boolean, "1"), (one_of("a"), ""), (positive, "0"),
                        (positive, "1" * 19), (positive, "")):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            parse(text)
    options = CommitLogOptions(
        {"PATH": "/p", "STARTINGOFFSETS": " Latest ", "includebody": "FALSE"}
    )
    assert (options["startingOffsets"], options["includeBody"]) == ("latest", False)
