"""A store's settings, from RocketMQ's own property file.

Held against golden stores' broker.conf, the defaults that formats.md §1 and §11 state, and
``java.util.Properties`` for the file format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.brokerconf import Properties, parse_properties, with_statements
from reput.store.config import broker_name, read_store_settings
from reput.store.errors import NotReadyError, UsageError
from reput.store.state.built import SETTINGS, settings_of
from tests.support import settings_page
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
    "a=1 \nb=true\t\nc=x\\ \n",
    "a=\\u6570\\ud842\\udfb7 \nb\\u0063=2",
    "# \\u are not read here\na=1\rb=2\r\rc=3",
    "a=1\\\n\nb=2\n\\\n# c=3\n",
    "a=1\\",
    "a b = c\nd == e\n= f\n",
    "\x0b a=1\n\x0c b=2\n\u6570=\u636e\n",
    "b=1\\\n",
    "  # b\\",
    "b=1\\",
    "b=a\\\na=2\n",
    "",
)
ADDED = {"a": "9s 1m", "new": "x"}


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
        ("storePathCommitLog={0}/gone", ("storePathCommitLog", "{0}/gone", "`broker_conf=`")),
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
    """Though STORE/commitlog is there: a part of a log is not the log. One that is not there may be
    mounted later."""
    (tmp_path / "file").write_text("")
    root = make_store(tmp_path / "store", text.format(tmp_path) + "\n")
    with pytest.raises(NotReadyError if "gone" in text else UsageError) as caught:
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
        ("mappedFileSizeCommitLog", "0"),
        ("mappedFileSizeConsumeQueue", "-1"),
        ("mappedFileSizeConsumeQueue", "2147483641"),
        ("maxErrorRateOfBloomFilter", "100"),
        ("maxErrorRateOfBloomFilter", "0"),
        ("expectConsumerNumUseFilter", "0"),
        ("mappedFileSizeConsumeQueueExt", "0"),
        ("accessMessageInMemoryMaxRatio", "101"),
        *((key, "-1") for key in NUMBERS),
    ],
)
def test_a_number_with_which_no_store_is_written_is_named(
    tmp_path: Path, key: str, value: str
) -> None:
    """RocketMQ would take it; we say the key, the file and what stands there."""
    root = make_store(tmp_path / "store", f"{key}={value}\n")
    with pytest.raises(UsageError) as caught:
        read_store_settings(root)
    for part in (f"{key} in ", str(root / "broker.conf"), repr(value)):
        assert part in str(caught.value)


ODD_STATEMENTS = {
    "mappedFileSizeConsumeQueue=300000 ": "'300000 ', which is no number",
    "maxIndexNum=1G": "'1G', which is no number",
    "maxIndexNum=2147483648": "no number",
    "maxHashSlotNum=": "'', which is no number",
    "enableLmq=true ": "'true ', which a broker reads as false",
    "enableLmq=yes # please": "'yes # please', which a broker reads as false",
    "enableDLegerCommitLog=true\t": "as false",
    "mapedFileSizeCommitLog=1048576": "its name is mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue=300000": "since RocketMQ 4.5.2 ignore mapedFileSizeConsumeQueue",
    "MaxIndexNum=7": "its name is maxIndexNum",
    "enableDLedgerCommitLog=true": "its name is enableDLegerCommitLog",
    "\ufeffmaxIndexNum=7": "its name is maxIndexNum",
    "brokerName=\u6570": "ISO 8859-1",
}
"""Statement that a broker reads otherwise than it looks -> words of the warning."""


def test_what_was_meant_otherwise_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line names the file, and the setting has RocketMQ's default; a second reading says
    nothing."""
    root = make_store(tmp_path / "store", "")
    defaults = read_store_settings(root)
    for text, words in ODD_STATEMENTS.items():
        (root / "broker.conf").write_text(text + "\n", "utf-8")
        caplog.clear()
        settings = read_store_settings(root)
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"{root / 'broker.conf'}: "), text
        assert words in line, text
        read_store_settings(root)
        assert len(caplog.records) == 1, text
        stated = {field_of(text.strip().partition("=")[0]): False} if "=true" in text else {}
        assert settings == replace(defaults, **{
            name: value for name, value in stated.items() if hasattr(defaults, name)
        }), text  # fmt: skip


def test_nothing_is_said_of_what_a_broker_reads_as_it_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every setting that RocketMQ has, in its own spelling; former names beside the new ones;
    comments in any encoding; texts with blanks around them."""
    root = make_store(tmp_path / "store", "")
    rows, log = settings_page.rows(), root / "commitlog"
    lines = [
        f"{name}={row.default}" for name, row in rows.items() if "storePath" not in name.lower()
    ]
    lines += [f"{name}=1" for name in settings_page.others() if name not in ("brokerName",)]
    lines += [
        f"storePathCommitLog= {log}, ",
        "mapedFileSizeCommitLog=1",
        "brokerName = caf\\u00e9 ",
    ]
    lines += ["enableLmq=TRUE"]
    text = "\n".join(line for line in lines if not line.endswith("ReadOnlyCommitLogStorePaths="))
    (root / "broker.conf").write_bytes("# \u5b58\u50a8\n".encode("gbk") + text.encode())
    settings = read_store_settings(root)
    assert caplog.records == []
    assert settings.commit_log_directories == (log,)
    assert settings.enable_lmq
    assert settings.mapped_file_size_commit_log == 1 << 30


def test_a_path_is_the_one_that_a_broker_opens(tmp_path: Path) -> None:
    """Escaped characters are themselves; raw ones beyond ASCII are ISO 8859-1, as to Java."""
    root = make_store(tmp_path / "store", "")
    for stated, name in (
        (b"\\u6570\\ud842\\udfb7", "\u6570\U00020bb7"),
        ("\u6570".encode(), "\xe6\x95\xb0"),
        ("\u6570".encode("gbk"), "\xca\xfd"),
    ):
        (tmp_path / name).mkdir()
        path = str(tmp_path).encode() + b"/" + stated
        (root / "broker.conf").write_bytes(b"storePathCommitLog=" + path + b" \n")
        assert read_store_settings(root).commit_log_directories == (tmp_path / name,)
    for stated in (b"\\u0000x", b"\\ud842"):
        (root / "broker.conf").write_bytes(b"storePathCommitLog=/" + stated)
        with pytest.raises(UsageError, match="cannot read commitlog directory"):
            read_store_settings(root)


def test_a_directory_is_listed_once_and_others_of_its_number_too(tmp_path: Path) -> None:
    """The roots of two file systems, here of the kernel, have one inode number."""
    assert Path("/proc").stat().st_ino == Path("/sys").stat().st_ino
    (tmp_path / "link").symlink_to("/sys")
    root = make_store(tmp_path / "store", f"storePathCommitLog=/proc,/sys,{tmp_path}/link,/proc/")
    assert read_store_settings(root).commit_log_directories == (Path("/proc"), Path("/sys"))


@pytest.mark.parametrize(
    ("stated", "levels"),
    [
        ("1s 5m", (1000, 300_000)),
        (" -2d +3h ", (-172_800_000, 10_800_000)),
        ("\\u06637s", (37_000,)),
        ("9223372036854775807s", (-1000,)),
    ],
)
def test_delay_levels_are_javas(tmp_path: Path, stated: str, levels: tuple[int, ...]) -> None:
    """``Long.parseLong`` times the unit, overflow included."""
    root = make_store(tmp_path / "store", f"messageDelayLevel={stated}\n")
    assert read_store_settings(root).message_delay_levels_ms == levels


@pytest.mark.parametrize(
    "value", ["", "1", "1s 5x", "s", "1S", "1.5s", "1s,5s", "1s  5s", "9223372036854775808s"]
)
def test_a_delay_level_that_is_none_is_named(tmp_path: Path, value: str) -> None:
    """A broker does not start with such levels; units are s, m, h, d (§11)."""
    root = make_store(tmp_path / "store", f"messageDelayLevel={value}\n")
    with pytest.raises(UsageError, match="messageDelayLevel"):
        read_store_settings(root)


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    """No directory, no commitlog, a configuration that is not there or cannot be read."""
    with pytest.raises(NotReadyError, match="there is no directory"):
        read_store_settings(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotReadyError, match="no commitlog in"):
        read_store_settings(tmp_path / "empty")
    root = make_store(tmp_path / "store")
    with pytest.raises(NotReadyError, match=r"missing\.conf"):
        read_store_settings(root, tmp_path / "missing.conf")
    (root / "broker.conf").write_bytes(b"a=C:\\users\n")
    with pytest.raises(UsageError, match=r"broker\.conf: \\users is no"):
        read_store_settings(root)


def test_a_line_that_goes_on_is_no_comment() -> None:
    """The next part may begin like a comment."""
    found = parse_properties(b"a=1\\\n  #2\n#c=3\nb=4")
    assert found == {"a": "1#2", "b": "4"}


def test_property_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Comments, separators, duplicates, continued lines, escapes, space that ends a value; and so
    after a statement was added."""
    paths = []
    for index, text in enumerate(PROPERTY_FILES):
        for name, data in (
            ("given", text.encode()),
            ("more", with_statements(text.encode(), ADDED)),
        ):
            paths.append(tmp_path / f"{index}-{name}.conf")
            paths[-1].write_bytes(data)
    answer = tmp_path / "answer"
    run_java(tmp_path, "ListProperties", LIST_PROPERTIES, str(answer), *map(str, paths))
    answers = [
        {key: value for key, _, value in (p.partition("\x01") for p in one.split("\x02")[:-1])}
        for one in answer.read_text().split("\x03")[:-1]
    ]
    assert len(answers) == len(paths)
    for text, given, more in zip(PROPERTY_FILES, answers[::2], answers[1::2], strict=True):
        assert parse_properties(text.encode()) == given, text
        assert more == {**given, **ADDED}, text
        again = with_statements(text.encode(), ADDED)
        assert with_statements(again, ADDED) == again


def test_every_file_that_a_setting_decides_is_in_its_row() -> None:
    """By formats.md; those that may change hold for later entries alone."""
    queue, ext = {"consumequeue"}, {"consumequeue_ext"}
    batch, index = {"batchconsumequeue"}, {"index"}
    assert {one.name: ({*one.kinds}, one.may_change) for one in SETTINGS} == {
        "mappedFileSizeConsumeQueue": (queue, False),
        "onQueueGap": (queue, False),
        "enableMultiDispatch": (queue, False),
        "enableLmq": (queue, False),
        "enableConsumeQueueExt": (queue | ext, False),
        "mappedFileSizeConsumeQueueExt": (ext, False),
        "enableCalcFilterBitMap": (ext, False),
        "maxErrorRateOfBloomFilter": (ext, False),
        "expectConsumerNumUseFilter": (ext, False),
        "mapperFileSizeBatchConsumeQueue": (batch, False),
        "messageIndexEnable": (index, True),
        "indexFileWriteEnable": (index, True),
        "indexTags": (index, False),
        "maxHashSlotNum": (index, False),
        "maxIndexNum": (index, False),
        "verifyCrc": (queue | ext | batch | index, False),
        "topicBegins": (queue | ext | batch, True),
        "messageDelayLevelsMs": (queue | ext | batch, True),
    }


def test_a_broker_without_a_name_has_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same where the folder is given as the current one; a stated name is trimmed, and
    one of blanks is none."""
    root = make_store(tmp_path / "broker-a")
    monkeypatch.chdir(root)
    for stated, name in (
        ({}, "broker-a"),
        ({"brokerName": " "}, "broker-a"),
        ({"brokerName": "b "}, "b"),
    ):
        properties = Properties(root / "broker.conf", stated)
        assert broker_name(root, properties) == name
        assert broker_name(Path(), properties) == name
