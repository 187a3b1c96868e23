"""A ``broker.conf`` means here what it means to a broker.

Random files are given to RocketMQ's own classes (``Properties.load``, ``MixAll.properties2Object``)
and to ours: separators, blanks, continued lines, escapes, comments in GBK, duplicates, digits of
other scripts, mutated bytes. Compared: every setting that is honoured or refused. Numbers that a
broker takes and that no store can be written with are refused here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from reput.store.brokerconf import Properties
from reput.store.config import StoreSettings, read_stated, setting_name
from reput.store.errors import UsageError
from tests.interop.rocketmq import ask_settings
from tests.support import settings_page

FILES = 5_000
"""For each release."""
LIMITS = {
    setting_name(setting.name): (setting.name, setting.default, setting.metadata["limits"])
    for setting in fields(StoreSettings)
    if "limits" in setting.metadata
}
TEXTS = ("storePathCommitLog", "readOnlyCommitLogStorePaths", "brokerName", "brokerClusterName")
NAMES = (
    *(name for name, row in settings_page.rows().items() if row.verdict != "of no effect"),
    *("brokerName", "brokerClusterName", "rocksdbCQDoubleWriteEnable"),
)
OTHER_KEYS = (
    b"mapedFileSizeCommitLog", b"mapedFileSizeConsumeQueue", b"MaxIndexNum", b"maxindexnum", b"",
    b"listenPort", b"maxIndex\\Num", b"max\\u0049ndexNum", b"enableLmq\\u00e9", b"a=b",
)  # fmt: skip
VALUES = (
    b"true", b"false", b"TRUE", b"tRuE", b"yes", b"1", b"0", b"-1", b"+7", b"40", b"99", b"100",
    b"300000", b"6000001", b"2147483647", b"2147483648", b"00000000000000000000012", b"1e3", b"1_0",
    b"0x10", b"1.5", b"", b"\\u0661\\uff12", b"\\ud835\\udfce", b"\xb2", b"1s 5s", b"1s  5s",
    b"-3m 2d", b"5x", b"7h", b"9223372036854775807d 1s", b"s", b"\\u06612s", b"default", b"v2",
    b"defaultRoc\\u212aSDB", b"defaultRock\\u017fDB", b"default;defaultRocksDB", b"/a/b,/c", b"/a,",
    "/数据".encode(), "/数据".encode("gbk"), b"/\\u6570\\u636e", b"a=b:c d", b"x\\ty\\\\z\\q",
    b"tr\\ue",
)  # fmt: skip
BLANKS = (b"", b"", b"", b"", b" ", b"\t", b"\f", b"\x0b", b"\xa0", b"\x00", b" \t ")
SEPARATORS = (b"=", b"=", b"=", b":", b" ", b" = ", b"\t:\t", b"==", b"\f", b"")
ENDS = (b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\r\n", b"\\\n", b"\\\r\n  ", b"")
COMMENTS = ("# 存储路径".encode("gbk"), b"! \\uno", b"  # a \\", b"#", b"\\", b"\\\\", b"  ")


def random_line(rng: random.Random, names: Sequence[str]) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(COMMENTS)
    name = rng.choice(names)
    key = rng.choice(OTHER_KEYS) if kind < 0.2 else name.encode()
    value = rng.choice(VALUES)
    if rng.random() < 0.5 and LIMITS.get(name, LIMITS["maxIndexNum"])[2] is not None:
        value = str(rng.choice((1, 40, 99, rng.randrange(1 << 32)))).encode()
    value = rng.choice(BLANKS) + value + rng.choice(BLANKS)
    return rng.choice(BLANKS) + key + rng.choice(SEPARATORS) + value


def random_file(rng: random.Random, names: Sequence[str]) -> bytes:
    data = bytearray()
    for _ in range(rng.randint(0, 8)):
        data += random_line(rng, names) + rng.choice(ENDS)
    for _ in range(rng.choice((0, 0, 0, 1, 3)) if data else 0):
        data[rng.randrange(len(data))] = rng.choice(b"\\=: \n\r#u0atrue\xff\x80")
    return bytes(data)


def is_refused(theirs: dict[str, str]) -> bool:
    """Whether a broker with these settings cannot have written a store that is read here."""
    store_type, version, loaded = (
        bytes.fromhex(theirs.get(name, "")).decode("utf-16-be", "replace").casefold()
        for name in ("storeType", "configManagerVersion", "combineCQLoadingCQTypes")
    )
    is_files = (
        "default" in map(str.strip, loaded.split(";")) or "combineCQLoadingCQTypes" not in theirs
    )
    is_double = theirs["rocksdbCQDoubleWriteEnable"] == "true"
    is_light = theirs.get("combineCQUseRocksdbForLmq") == theirs["enableMultiDispatch"] == "true"
    return (
        theirs["enableDLegerCommitLog"] == "true"
        or store_type == "defaultrocksdb"
        or version == "v2"
        or (is_double and (is_light or not is_files))
        or not theirs["levels"]
        or any(
            not limits[0] <= int(theirs[name]) <= limits[1]
            for name, (_, _, limits) in LIMITS.items()
            if limits is not None and name in theirs
        )
    )


def spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(path: Path, data: bytes, theirs: dict[str, str] | None) -> str:
    """Compare the two readings of one file; what ours was."""
    path.write_bytes(data)
    stated: dict[str, Any]
    try:
        stated = dict(read_stated(path.parent, path))
    except UsageError as error:
        assert theirs is None or is_refused(theirs), (data, error)
        return "refused"
    assert theirs is not None, data
    assert not is_refused(theirs), data
    for name, (field, default, _) in LIMITS.items():
        value = stated.get(field, default)
        if name in theirs and value is not None:
            assert spelled(value) == theirs[name], (data, name)
    if (levels := stated.pop("message_delay_levels_ms", None)) is not None:
        assert ",".join(map(str, levels)) == theirs["levels"], data
    properties = Properties.read(path)
    for name in TEXTS:
        if (value := properties.text(name)) is not None:
            assert value.encode("utf-16-be", "surrogatepass").hex() == theirs[name], (data, name)
    return "stated" if stated else "nothing stated"


def test_random_files_mean_what_they_mean_to_a_broker(
    release: str, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each setting has the value that RocketMQ's own class gives it, or both refuse the file; a
    setting that is not stated, or that a broker drops, has RocketMQ's default."""
    caplog.set_level("ERROR")
    rng = random.Random(seed)
    [defaults] = ask_settings(tmp_path, NAMES, [b""])
    assert defaults is not None
    names = [name for name in NAMES if name in defaults]
    files = [random_file(rng, names) for _ in range(FILES)]
    answers = ask_settings(tmp_path, names, files)
    found = Counter(
        check(tmp_path / "broker.conf", data, theirs)
        for data, theirs in zip(files, answers, strict=True)
    )
    print(release, dict(found))
    assert min(found[kind] for kind in ("refused", "stated", "nothing stated")) > FILES // 20
