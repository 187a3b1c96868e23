"""A store's settings, from RocketMQ's own property file.

Held against golden stores' broker.conf, the defaults that formats.md §1 and §11 state, and
``java.util.Properties`` for the file format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.config import parse_properties, read_store_settings
from store.errors import UsageError
from store.state.built import settings_of
from tests.support.golden import GOLDEN_NAMES
from tests.support.jdk import run_java

LIST_PROPERTIES = """
import java.io.FileInputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.TreeSet;

public class ListProperties {
    public static void main(String[] args) throws Exception {
        StringBuilder out = new StringBuilder();
        for (int index = 1; index < args.length; index++) {
            Properties found = new Properties();
            found.load(new FileInputStream(args[index]));
            for (String key : new TreeSet<>(found.stringPropertyNames())) {
                out.append(key).append('\\u0001').append(found.getProperty(key)).append('\\u0002');
            }
            out.append('\\u0003');
        }
        Files.writeString(Path.of(args[0]), out);
    }
}
"""

PROPERTY_FILES = (
    "a=1\nb=2\n",
    "a = 1\nb\t=\t2\n\n  c=3\n",
    "a:1\nb: 2\nc :3",
    "# comment\n! other\n  # indented\na=1\n",
    "a=1\na=2\n",
    "a=\nb=x\n",
    "a=b=c\nd=e:f\nnamesrvAddr=127.0.0.1:9876;127.0.0.2:9876\n",
    "a=1\r\nb=2\r\n",
    "a=1,\\\n   2,\\\n   3\nb=4\n",
    "a=1,\\\r\n2\r\nb=3\n",
    "messageDelayLevel=1s 5s 10s\n",
    "# ends with a backslash \\\na=1\n",
    "# C:\\store\\\nmappedFileSizeConsumeQueue=6000\n",
    "storePathRootDir:/data/a=b\n",
    "a=1#no comment\nb=2 # nor this\n",
    "a=1",
    "a 1\nb\t2\n",
    "a=1\\\\\nb=2\n",
    "a=1\\\\\\\n2\nb=3\n",
    "a\\=b=c\\:d\\te\\\\f\n",
    "",
)


def make_store(root: Path, conf: str | None = None) -> Path:
    (root / "commitlog").mkdir(parents=True)
    if conf is not None:
        (root / "broker.conf").write_text(conf, "utf-8")
    return root


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_settings_are_their_files(name: str, golden: Callable[[str], Path]) -> None:
    """The sizes that broker.conf states are those of the files that RocketMQ made by it."""
    root = golden(name)
    settings = read_store_settings(root)
    assert settings.commit_log_directories == (root / "commitlog",)
    log_sizes = {path.stat().st_size for path in (root / "commitlog").iterdir()}
    queue_sizes = {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")}
    assert log_sizes == {settings.mapped_file_size_commit_log}
    assert queue_sizes == {settings.mapped_file_size_consume_queue}


def test_defaults_are_rocketmqs(tmp_path: Path) -> None:
    """Without a broker.conf, and with one that speaks of other things."""
    minutes = (*range(60, 601, 60), 1200, 1800, 3600, 7200)
    for name, conf in (("none", None), ("other", "brokerName=b\nbrokerRole=ASYNC_MASTER\n")):
        settings = read_store_settings(make_store(tmp_path / name, conf))
        assert settings.mapped_file_size_commit_log is None
        assert settings.mapped_file_size_consume_queue == 6_000_000
        assert settings.message_delay_levels_ms == tuple(
            seconds * 1000 for seconds in (1, 5, 10, 30, *minutes)
        )
        assert len(settings.message_delay_levels_ms) == 18


def test_settings_come_from_the_store_or_from_a_file_given(tmp_path: Path) -> None:
    """The file given replaces the store's own; flags replace both, rounded as RocketMQ rounds."""
    conf = "mappedFileSizeCommitLog=1000\nmappedFileSizeConsumeQueue=6001\nmessageDelayLevel=2s 3d"
    root = make_store(tmp_path / "store", conf)
    own = read_store_settings(root)
    assert own.mapped_file_size_commit_log == 1000
    assert own.mapped_file_size_consume_queue == 6020
    assert own.message_delay_levels_ms == (2000, 3 * 86_400_000)
    given = tmp_path / "given.conf"
    given.write_text("mappedFileSizeConsumeQueue=40\n")
    other = read_store_settings(root, given)
    assert (other.mapped_file_size_commit_log, other.mapped_file_size_consume_queue) == (None, 40)
    assert own.with_commit_log_file_size(None) == own
    flags = settings_of(
        root, own.with_commit_log_file_size(5), {"mapped_file_size_consume_queue": 61}
    )
    assert flags.mapped_file_size_commit_log == 5
    assert flags.mapped_file_size_consume_queue == 80
    assert flags.message_delay_levels_ms == own.message_delay_levels_ms


def test_what_is_stated_counts_whatever_else_is_there(tmp_path: Path) -> None:
    """A log in STORE/commitlog, or an empty one, does not stand above storePathCommitLog; read-only
    paths come with them; a directory counts once, under the name that came first."""
    places = [tmp_path / name for name in ("b", "a", "old")]
    for place in places:
        place.mkdir()
    (tmp_path / "link").symlink_to(places[0])
    b, a, old = map(str, places)
    conf = tmp_path / "store" / "broker.conf"
    root = make_store(conf.parent, "")
    for text, expected in (
        (f"storePathCommitLog={a}", (a,)),
        (f"storePathCommitLog={b},{a}", (b, a)),
        (f"storePathCommitLog={root / 'commitlog'},{a}", (str(root / "commitlog"), a)),
        (f"storePathCommitLog= {a},{b},, ", (a, b)),
        (f"storePathCommitLog={a},\nreadOnlyCommitLogStorePaths={old},", (a, old)),
        (f"storePathCommitLog={a},{old}\nreadOnlyCommitLogStorePaths={old}", (a, old)),
        (f"storePathCommitLog={a},{b}/,{tmp_path / 'link'},{a}", (a, b)),
        (f"storePathRootDir={tmp_path / 'elsewhere'}", (str(root / "commitlog"),)),
    ):
        conf.write_text(text + "\n")
        settings = read_store_settings(root)
        assert tuple(map(str, settings.commit_log_directories)) == expected, text
        assert settings.property_file == conf
        assert read_store_settings(root, conf) == settings
    conf.unlink()
    plain = read_store_settings(root)
    assert (plain.commit_log_directories, plain.property_file) == ((root / "commitlog",), None)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("storePathCommitLog={0}/gone", ("storePathCommitLog", "{0}/gone", "--broker-conf")),
        ("storePathCommitLog={0},{0}/gone", ("{0}/gone", "No such file", "copied or moved")),
        ("storePathCommitLog={0}/file,{0}", ("{0}/file", "Not a directory")),
        ("storePathCommitLog={0};{0}/gone", ("{0};{0}/gone",)),
        ("storePathCommitLog={0}, {0}", ("' {0}'", "no spaces")),
        ("storePathCommitLog={0},,{0}", ("''",)),
        ("storePathCommitLog=", ("''",)),
        ("storePathCommitLog=,", ("''",)),
        ("storePathCommitLog=commitlog", ("'commitlog'", "working directory")),
        ("storePathCommitLog=~/store", ("'~/store'", "literally")),
        ("storePathCommitLog=${{user.home}}/store", ("'${{user.home}}/store'",)),
        (
            "storePathCommitLog={0},\nreadOnlyCommitLogStorePaths={0}/gone",
            ("readOnlyCommitLogStorePaths", "{0}/gone"),
        ),
        ("storePathCommitLog={0}\nreadOnlyCommitLogStorePaths={0}", ("RocketMQ ignores",)),
        ("readOnlyCommitLogStorePaths={0}", ("RocketMQ ignores",)),
    ],
)
def test_a_directory_that_cannot_be_read_is_named(
    tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    """Though STORE/commitlog is there: a part of a log is not the log."""
    (tmp_path / "file").write_text("")
    root = make_store(tmp_path / "store", text.format(tmp_path) + "\n")
    with pytest.raises(UsageError) as caught:
        read_store_settings(root)
    for part in (*parts, "{0}/store/broker.conf"):
        assert part.format(tmp_path) in str(caught.value)


SWITCHES = {
    "enableConsumeQueueExt": False, "enableCalcFilterBitMap": False, "enableMultiDispatch": False,
    "enableLmq": False, "messageIndexEnable": True, "indexFileWriteEnable": True,
}  # fmt: skip
NUMBERS = {
    "mappedFileSizeConsumeQueueExt": 50331648, "maxErrorRateOfBloomFilter": None,
    "expectConsumerNumUseFilter": None, "mapperFileSizeBatchConsumeQueue": 13800000,
    "maxHashSlotNum": 5000000, "maxIndexNum": 20000000, "maxMsgsNumBatch": 64,
    "maxTransferBytesOnMessageInMemory": 262144, "maxTransferCountOnMessageInMemory": 32,
    "maxTransferBytesOnMessageInDisk": 65536, "maxTransferCountOnMessageInDisk": 8,
    "maxFilterMessageSize": 16000, "accessMessageInMemoryMaxRatio": 40,
}  # fmt: skip
"""``MessageStoreConfig`` and ``BrokerConfig`` of RocketMQ: key -> default."""


def field_of(key: str) -> str:
    """maxIndexNum -> max_index_num."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in key)


def test_what_decides_the_other_derived_files_has_rocketmqs_names_and_defaults(
    tmp_path: Path,
) -> None:
    """Without a broker.conf the defaults; each key alone changes its field and no other. What the
    Bloom filter's shape is, the filter file says where the settings do not."""
    root = make_store(tmp_path / "store", "")
    defaults = read_store_settings(root)
    for key, default in {**SWITCHES, **NUMBERS}.items():
        assert getattr(defaults, field_of(key)) == default, key
        other = not default if isinstance(default, bool) else 7
        (root / "broker.conf").write_text(f"{key}={str(other).lower()}\n")
        assert read_store_settings(root) == replace(defaults, **{field_of(key): other}), key
    (root / "broker.conf").write_text("enableLmq = TRUE\nmessageIndexEnable:False\n")
    changed = read_store_settings(root)
    assert (changed.enable_lmq, changed.message_index_enable) == (True, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in SWITCHES for value in ("", "1", "yes", "truee")),
        *((key, value) for key in NUMBERS for value in ("", "-1", "x", "2147483648", "1.5")),
        ("maxErrorRateOfBloomFilter", "100"),
        ("maxErrorRateOfBloomFilter", "0"),
        ("expectConsumerNumUseFilter", "0"),
        ("mappedFileSizeConsumeQueueExt", "0"),
        ("accessMessageInMemoryMaxRatio", "101"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(tmp_path: Path, key: str, value: str) -> None:
    """RocketMQ would take the default; we say the key, the file and what stands there."""
    root = make_store(tmp_path / "store", f"{key}={value}\n")
    with pytest.raises(UsageError) as caught:
        read_store_settings(root)
    for part in (f"{key} in ", str(root / "broker.conf"), repr(value)):
        assert part in str(caught.value)


@pytest.mark.parametrize("value", ["0", "-1", "1G", "1e9", "", "٣", "1 000", "9" * 19, "0x10"])
@pytest.mark.parametrize("key", ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"])
def test_a_size_that_is_no_number_is_named(tmp_path: Path, key: str, value: str) -> None:
    """The key, the file and what stands there are in the error."""
    root = make_store(tmp_path / "store", f"{key}={value}\n")
    with pytest.raises(UsageError) as caught:
        read_store_settings(root)
    for part in (key, str(root / "broker.conf"), repr(value)):
        assert part in str(caught.value)


@pytest.mark.parametrize("value", ["1", "1s 5x", "s", "1S", "1.5s", "-1s", "1s,5s", "٣s"])
def test_a_delay_level_that_is_none_is_named(tmp_path: Path, value: str) -> None:
    """Units are s, m, h, d (§11)."""
    root = make_store(tmp_path / "store", f"messageDelayLevel={value}\n")
    with pytest.raises(UsageError, match="messageDelayLevel"):
        read_store_settings(root)


def test_what_is_no_store_is_a_wrong_call(tmp_path: Path) -> None:
    """No directory, no commitlog, a configuration that cannot be read."""
    with pytest.raises(UsageError, match="not a directory"):
        read_store_settings(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no commitlog in"):
        read_store_settings(tmp_path / "empty")
    root = make_store(tmp_path / "store")
    with pytest.raises(UsageError, match=r"missing\.conf"):
        read_store_settings(root, tmp_path / "missing.conf")
    (root / "broker.conf").write_bytes(b"a=\xff\xfe\n")
    with pytest.raises(UsageError, match=r"broker\.conf"):
        read_store_settings(root)


def test_property_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Comments, separators, duplicates, continued lines: what broker.conf files hold.

    Not compared: code points written as escapes, space that ends a value.
    """
    paths = []
    for index, text in enumerate(PROPERTY_FILES):
        paths.append(tmp_path / f"{index}.conf")
        paths[-1].write_bytes(text.encode())
    answer = tmp_path / "answer"
    run_java(tmp_path, "ListProperties", LIST_PROPERTIES, str(answer), *map(str, paths))
    answers = answer.read_text().split("\x03")[:-1]
    assert len(answers) == len(PROPERTY_FILES)
    differing = []
    for text, theirs in zip(PROPERTY_FILES, answers, strict=True):
        pairs = [pair.partition("\x01") for pair in theirs.split("\x02")[:-1]]
        expected = {key: value for key, _, value in pairs}
        if parse_properties(text) != expected:
            differing.append((text, parse_properties(text), expected))
    assert differing == []
