"""Names from the log: cases 10 to 12 of the threat model, and 21, names in directories.

Of each run the audit hook tells what was opened, made, renamed or removed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.stores import SOUND, dispatched, log_with, sound_log, sound_units
from tests.support.audit import Touched, watched
from tests.support.golden import tree
from tests.support.small_store import SmallStore, is_directory_name
from tests.support.wire import PlainLog, file_name

NAMES: dict[str, bytes] = {
    "empty": b"",
    "dot": b".",
    "dots": b"..",
    "parent": b"../x",
    "far parents": b"../../../../../../tmp/x",
    "absolute": b"/tmp/x",
    "slash": b"a/b",
    "slash at the end": b"a/",
    "backslash": b"..\\x",
    "nul": b"a\0b",
    "line feed": b"a\nb",
    "terminal": b"\x1b[2J\x07",
    "C1 control": "a\x9bb".encode(),
    "no UTF-8": b"\xff\xfe",
    "overlong slash": b"..\xc0\xaf..",
    "a lone surrogate": b"\xed\xa0\x80",
    "300 bytes": b"t" * 300,
    "a file of the output": b"../reput/watermark",
    "another queue's file": b"Sound/0/00000000000000000000",
}
PLAIN = {
    "a blank": b"a b", "a tilde": b"~", "a quote": b"'; rm -rf ~", "an option": b"-rf",
    "255 bytes": b"t" * 255, "three dots": b"...", "right to left": "a\u202eb".encode(),
}  # fmt: skip
"""Odd, but plain path components: RocketMQ's store takes them as well."""


def touched_by(store: SmallStore) -> Touched:
    """The paths outside of store and output that two dispatches and a verification touch."""
    with watched() as touched:
        store.output.start()
        store.output.start()
        store.output.verify()
    found = touched.outside(store.output.store, store.output.root)
    # directories above the output are synced, so that its own name is durable
    found.read -= set(store.output.root.parents)
    return found


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Touched:
    """The same for stores with nothing but sound names, once everything is imported."""
    touched = Touched()
    for number in range(2):
        directory = tmp_path_factory.mktemp(f"usual{number}")
        for store in (
            SmallStore(directory / "one", sound_log()),
            with_light_queues(directory / "many", b"%LMQ%a", b"0"),
        ):
            touched.read |= touched_by(store).read
    return touched


def test_the_hook_sees_what_it_should(tmp_path: Path) -> None:
    """A canary: each of these must be noticed."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    acts: list[Callable[[], object]] = [
        lambda: (inside / "../out/a").write_bytes(b""),
        lambda: os.close(os.open(outside / "b", os.O_RDWR | os.O_CREAT)),
        (outside / "c").mkdir,
        lambda: (outside / "b").rename(outside / "d"),
        lambda: (inside / "a").symlink_to(outside),
        (inside / "a" / "e").touch,
        (outside / "d").unlink,
        lambda: os.truncate(outside / "a", 0),
    ]
    for act in acts:
        with watched() as touched:
            act()
        assert touched.outside(inside).changed, act.__code__.co_firstlineno
    with watched() as touched:
        (outside / "a").read_bytes()
        list(os.scandir(outside))
    assert len(touched.outside(inside).read) == 2


@pytest.mark.parametrize("case", NAMES)
def test_case_10_topics_that_are_no_directory(tmp_path: Path, usual: Touched, case: str) -> None:
    """Listed; no file outside of the output is made or changed, none outside of store and output
    is opened that a sound log does not open."""
    topic = NAMES[case]
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    plain = log_with({"topic": topic}, {"topic": topic, "queue_id": 1, "queue_offset": 7})
    store = SmallStore(deep, plain)
    touched = touched_by(store)
    store.check()
    assert touched.changed == set()
    assert touched.read - usual.read == set()
    assert {path.name for path in deep.iterdir()} == {"store", "output"}
    assert store.topics() == ["Sound"]
    assert [one["reason"] for one in store.ledger()] == ["topic_name"] * 2
    assert all(one["topic"].isprintable() and one["topic"].isascii() for one in store.ledger())


@pytest.mark.parametrize("case", PLAIN)
def test_case_10_odd_topics_that_are_plain(tmp_path: Path, usual: Touched, case: str) -> None:
    """Each is a directory of the output, byte for byte the name."""
    store = SmallStore(tmp_path, log_with({"topic": PLAIN[case]}))
    touched = touched_by(store)
    store.check()
    assert (touched.changed, touched.read - usual.read) == (set(), set())
    assert os.fsencode(store.output.root / "consumequeue") + b"/" + PLAIN[case] in {
        os.path.join(os.fsencode(store.output.root / "consumequeue"), name)  # noqa: PTH118
        for name in os.listdir(os.fsencode(store.output.root / "consumequeue"))  # noqa: PTH208
    }


def test_case_10_names_at_random(tmp_path: Path, usual: Touched, seed: int) -> None:
    """A thousand names of the bytes that matter, in one log."""
    rng = random.Random(seed)
    parts = (b".", b"..", b"/", b"\\", b"a", b"\0", b"\x1b", b"\xc0\xaf", b"\xff", "é".encode())
    names = {b"".join(rng.choices(parts, k=rng.randrange(6))) for _ in range(1000)}
    plain = PlainLog(1 << 18)
    for name in sorted(names):
        plain.append(topic=name)
    store = SmallStore(tmp_path, plain)
    touched = touched_by(store)
    store.check()
    assert (touched.changed, touched.read - usual.read) == (set(), set())
    assert len(store.topics()) == sum(map(is_directory_name, names)) > 5


LIGHT: dict[str, tuple[bytes, bytes, set[str], str | None]] = {
    "parents": (b"../../x,..,.,a\\b,%LMQ%", b"0,0,0,0,0", {"%LMQ%"}, "topic_name"),
    "a slash is left out, as RocketMQ does": (b"%LMQ%/../x", b"0", set(), None),
    "fewer numbers than names": (b"%LMQ%a,%LMQ%b", b"1", set(), "bad_multi_dispatch"),
    "no numbers": (b"%LMQ%a", b"x", set(), "bad_multi_dispatch"),
    "commas alone": (b",,", b",", set(), None),
    "a number without a name": (b",", b"5", set(), "bad_multi_dispatch"),
    "nines": (b"%LMQ%a", b"9" * 5000, set(), "bad_multi_dispatch"),
    "a negative number": (b"%LMQ%a", b"-1", set(), "queue_offset_out_of_range"),
    "a terminal": (b"%LMQ%\x1b[2J", b"0", set(), "topic_name"),
}
"""INNER_MULTI_DISPATCH and its offsets, the light queues to be, and the reason in the ledger."""


def with_light_queues(directory: Path, names: bytes, offsets: bytes) -> SmallStore:
    """A store whose second message is listed in these queues."""
    block = b"INNER_MULTI_DISPATCH\x01%s\x02INNER_MULTI_QUEUE_OFFSET\x01%s\x02"
    plain = log_with({"topic": b"T", "properties": block % (names, offsets)}, file_size=1 << 17)
    store = SmallStore(directory, plain)
    with (store.output.store / "broker.conf").open("a") as conf:
        conf.write("enableMultiDispatch=true\nenableLmq=true\n")
    return store


@pytest.mark.parametrize("case", LIGHT)
def test_case_11_names_of_light_queues(tmp_path: Path, usual: Touched, case: str) -> None:
    """The same rule for each name; the message is in its own queue, whatever its lists are."""
    names, offsets, expected, reason = LIGHT[case]
    store = with_light_queues(tmp_path, names, offsets)
    touched = touched_by(store)
    assert (touched.changed, touched.read - usual.read) == (set(), set())
    assert set(store.topics()) == {"Sound", "T"} | expected
    assert {one["reason"] for one in store.ledger()} == ({reason} if reason else set())
    assert store.output.verify().differences == ()


def test_case_11_a_run_that_stops_at_damage_goes_on(tmp_path: Path) -> None:
    """A message whose lists do not fit is sound, and is in its own queue."""
    store = with_light_queues(tmp_path, b"%LMQ%a,%LMQ%b", b"1")
    store.output.start(fail_on_corrupt=True)
    assert set(store.topics()) == {"Sound", "T"}


def test_case_11_a_thousand_light_queues_of_one_message(tmp_path: Path) -> None:
    """Each is made, and none costs the disk more than a page."""
    count = 1000
    numbers = ",".join(f"{number:x}" for number in range(count)).encode()
    store = with_light_queues(tmp_path, numbers, b",".join([b"0"] * count)[: 2 * count])
    with watched() as touched:
        store.output.start()
    assert touched.outside(store.output.store, store.output.root).changed == set()
    assert len(store.topics()) == count + 2
    (path,) = (store.output.root / "consumequeue" / "3e7").glob("*/*")
    assert path.stat().st_blocks * 512 <= 4096


def test_case_12_a_topic_for_every_message(tmp_path: Path) -> None:
    """A thousand new queues: each costs its file's one page, none its 5.7 MiB."""
    plain = PlainLog(1 << 20)
    for number in range(1000):
        plain.append(topic=b"%d" % number)
    store = SmallStore(tmp_path, plain)
    with (store.output.store / "broker.conf").open("a") as conf:
        conf.write("mappedFileSizeConsumeQueue=6000000\n")
    store.output.start()
    files = list((store.output.root / "consumequeue").glob("*/*/*"))
    assert len(files) == 1000
    assert sum(path.stat().st_size for path in files) == 1000 * 6_000_000
    assert sum(path.stat().st_blocks for path in files) * 512 <= 1000 * 4096


def plant(kind: str, path: Path, outside: Path) -> None:
    """Something at ``path`` that is no regular file of the log."""
    match kind:
        case "symlink":
            path.symlink_to(outside / "file")
        case "dangling symlink":
            path.symlink_to(outside / "nothing")
        case "symlink to a directory":
            path.symlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            os.mknod(path, 0o140600)


PLANTED = (
    "symlink", "dangling symlink", "symlink to a directory", "fifo", "directory", "socket",
)  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_case_21_what_is_no_regular_file(tmp_path: Path, usual: Touched, kind: str) -> None:
    """Named like a file of the log, of a queue or of the index: none is opened, no byte beyond it
    changes, and nothing waits for a pipe."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "file").write_bytes(b"precious" * 512)
    plain = sound_log()
    store = SmallStore(tmp_path, plain)
    store.output.start()
    queue, index = store.output.root / "consumequeue" / "Sound" / "0", store.output.root / "index"
    for path in (
        store.output.store / "commitlog" / file_name(plain.file_size),
        queue / file_name(400 * 1000),
        index / "20200101000000000",
    ):
        plant(kind, path, outside)
    before = tree(outside)
    touched = touched_by(store)
    assert (touched.changed, touched.read - usual.read) == (set(), set())
    assert tree(outside) == before
    assert sound_units(plain, store) == len(plain.spans)
    assert store.ledger() == []


def test_case_21_names_that_are_no_offset(tmp_path: Path) -> None:
    """Twenty nines, other scripts' digits, signs, sizes that no disk has: ignored, and reported."""
    store = SmallStore(tmp_path, sound_log())
    directory = store.output.store / "commitlog"
    names = ["9" * 20, "٠" * 20, "+" + "0" * 19, "0" * 19, "0" * 20 + ".bak", "-1", " " * 20]
    for name in names:
        shutil.copy(directory / file_name(0), directory / name)
    with (directory / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    store.output.start()
    store.check()
    assert {path.name for path in store.output.store.glob("commitlog/*")} > set(names)


def test_case_21_a_second_name_of_a_file(tmp_path: Path) -> None:
    """A hard link is a file of the log that holds another offset's records: all listed, none of
    them dispatched twice."""
    plain = sound_log()
    store = SmallStore(tmp_path, plain)
    directory = store.output.store / "commitlog"
    (directory / file_name(plain.file_size)).hardlink_to(directory / file_name(0))
    plain.image.extend(plain.image)
    store.output.start()
    assert sound_units(sound_log(), store) == len(plain.spans)
    assert store.output.verify().differences == ()


def test_case_22_a_file_that_shrinks(tmp_path: Path) -> None:
    """It is refused in one line; whole again, it is dispatched."""
    plain = PlainLog(4096)
    while plain.end < 4096 + 2000:
        plain.append(**SOUND, queue_offset=len(plain.spans))
    store = dispatched(tmp_path, plain)
    path = store.output.store / "commitlog" / file_name(4096)
    whole = path.read_bytes()
    before = tree(store.output.root / "consumequeue")
    os.truncate(path, 100)
    with pytest.raises(Exception, match=r"has 100 bytes but .* restore the file") as error:
        store.output.start()
    assert "\n" not in str(error.value)
    assert tree(store.output.root / "consumequeue") == before
    path.write_bytes(whole)
    store.output.start()
    store.check()
