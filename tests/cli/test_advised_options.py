"""An error's advice to give, leave out, set or remove something is followed where it is printed.

Each case is a wrong call, or a wrong state, and what its error says to do instead. Commands that an
error prints whole are followed in ``test_advice``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.readers.stores import SmallStore
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput

Words = Sequence[object]
STORE, OUTPUT, ALL, NEW = "STORE", "OUTPUT", "ALL", "NEW"
"""Stand for the store, an output of it, the directory that holds this by the store's name, and a
directory that does not exist."""


@dataclass(frozen=True)
class Case:
    """A wrong call, what its one line advises, and the calls that follow the advice."""

    wrong: Words
    advice: str
    right: Sequence[Words]


RESET = ("groups", "reset", STORE, "billing", "--topic", "Topic")
LIST = ("checkpoints", "list", STORE)
REWIND = ("checkpoints", "rewind", STORE, "--output", OUTPUT)
RUN = ("run", STORE, "--output", OUTPUT, "--dry-run")
KAFKA = (*RUN, "--kafka", "127.0.0.1:1")
TIMES = "2026-01-31T12:30Z, 2026-01-31T12:30+08:00, '2026-01-31T12:30 Europe/Berlin' (or local)"
CALLS = (
    Case(("get", STORE), "give TOPIC, QUEUE and OFFSET", [("get", STORE, "Topic", 0, 0)]),
    Case(
        ("get", STORE, "Topic"),
        "give QUEUE and OFFSET after TOPIC",
        [("get", STORE, "Topic", 0, 0)],
    ),
    Case(
        ("query", STORE, "Topic"),
        "give --key or --unique-key",
        [("query", STORE, "Topic", "--key", "k"), ("query", STORE, "Topic", "--unique-key", "U")],
    ),
    Case(
        ("tail", STORE, "Topic", "--tag", "a", "--sql", "b = 1"),
        "give one of --tag, --sql and --group",
        [("tail", STORE, "Topic", "--tag", "a"), ("tail", STORE, "Topic", "--sql", "b = 1")],
    ),
    Case(
        ("tail", STORE, "Topic", "--follow", "--as-of", "offset:0"),
        "give one",
        [("tail", STORE, "Topic", "--as-of", "-1s")],
    ),
    Case(
        ("export", STORE, NEW, "--columns", "nothing"),
        "choose from topic, ",
        [("export", STORE, NEW, "--columns", "topic")],
    ),
    Case(
        ("export", STORE, STORE),
        "give a directory that does not exist yet",
        [("export", STORE, NEW)],
    ),
    Case(
        ("export", STORE, NEW, "--columns", "topic", "--partition-by", "topic"),
        "name another one in --columns",
        [("export", STORE, NEW, "--columns", "topic,tags", "--partition-by", "topic")],
    ),
    Case(
        ("sql", STORE, "select * from read_csv('/etc/passwd')"),
        "write Parquet files with reput export",
        [("export", STORE, NEW)],
    ),
    Case(
        RESET,
        "give one of --to-time, --earliest, and --queue with --offset",
        [
            (*RESET, "--to-time", "-1h"),
            (*RESET, "--earliest"),
            (*RESET, "--queue", 0, "--offset", 0),
        ],
    ),
    Case(
        (*RESET, "--queue", 0, "--offset", 99),
        "choose one from 0 to 3",
        [(*RESET, "--queue", 0, "--offset", at) for at in (0, 3)],
    ),
    Case(("groups", "show", STORE, "payment"), "reput groups list", [("groups", "list", STORE)]),
    Case(
        ("groups", "clone", STORE, "payment", "other"),
        "reput groups list",
        [("groups", "list", STORE)],
    ),
    Case(
        ("groups", "clone", STORE, "billing", "billing"),
        "name two groups",
        [("groups", "clone", STORE, "billing", "other")],
    ),
    Case(
        ("diff", STORE),
        "give STORE_B to compare with, or --since",
        [("diff", STORE, STORE), ("diff", STORE, "--since", "offset:0")],
    ),
    Case(
        ("diff", STORE, STORE, "--since", "offset:0"),
        "leave STORE_B and --only out",
        [("diff", STORE, "--since", "offset:0")],
    ),
    Case(
        ("diff", STORE, STORE, "--only", "x"),
        "choose from consumequeue, ",
        [("diff", STORE, STORE, "--only", "consumequeue")],
    ),
    Case(
        ("rebuild", STORE, "--output", OUTPUT, "--from", 5),
        "name them with --topic",
        [("rebuild", STORE, "--output", OUTPUT, "--from", 5, "--topic", "Topic")],
    ),
    Case(
        ("rebuild", STORE, "--output", OUTPUT, "--drop-old", "--dry-run"),
        "leave it out, or give it alone",
        [
            ("rebuild", STORE, "--output", OUTPUT, "--dry-run"),
            ("rebuild", STORE, "--output", OUTPUT, "--drop-old"),
        ],
    ),
    Case(
        ("status", STORE, "--check", "--topic", "Topic"),
        "leave out --watch, --json and --topic",
        [("status", STORE, "--check")],
    ),
    Case(
        ("status", STORE, "--warn-lag", "9s"),
        "are for --check",
        [("status", STORE, "--output", OUTPUT, "--check", "--warn-lag", "9s")],
    ),
    Case(("verify", STORE, "--sealed"), "leave out --sealed", [("verify", STORE)]),
    Case(
        ("verify", STORE, "--stores", STORE), "give either STORE or --stores", [("verify", STORE)]
    ),
    Case(
        ("verify", STORE, "--output", NEW),
        "give the --output of reput run, or the root of a store",
        [("verify", STORE, "--output", OUTPUT), ("verify", STORE, "--output", STORE)],
    ),
    Case(
        ("verify", STORE, "--output", OUTPUT, "--on-queue-gap", "blank"),
        "leave it out or give the same value to continue, or run reput rebuild for all of ",
        [
            ("verify", STORE, "--output", OUTPUT),
            ("verify", STORE, "--output", OUTPUT, "--on-queue-gap", "rocketmq"),
            ("rebuild", STORE, "--output", OUTPUT, "--on-queue-gap", "blank"),
            ("verify", STORE, "--output", OUTPUT, "--on-queue-gap", "blank"),
        ],
    ),
    Case(
        ("expire", STORE),
        "give the --output that reput writes",
        [("expire", STORE, "--output", OUTPUT)],
    ),
    Case(
        (*LIST, "--output", OUTPUT, "--checkpoint", NEW),
        "give the --checkpoint of reput run",
        [(*LIST, "--output", OUTPUT, "--checkpoint", f"{OUTPUT}/reput/spark")],
    ),
    Case(
        REWIND,
        "give one of --to-batch, --to-offset, --to-file and --to-time",
        [
            (*REWIND, "--to-offset", 0),
            (*REWIND, "--to-file", "0" * 20),
            (*REWIND, "--to-time", "2020-01-01T00:00Z"),
        ],
    ),
    Case(
        ("status", "--stores", STORE),
        "--stores GLOB and --outputs DIR need each other",
        [("status", "--stores", STORE, "--outputs", ALL)],
    ),
    Case(
        ("verify", "--stores", STORE, "--outputs", ALL, "--output", OUTPUT),
        "--output is for one store; leave it out with --stores",
        [("verify", "--stores", STORE, "--outputs", ALL)],
    ),
    Case(
        ("run", STORE, "--once"),
        "write elsewhere with --output DIR, or pass --adopt",
        [("run", STORE, "--once", "--output", NEW), ("run", STORE, "--once", "--adopt")],
    ),
    Case(
        ("run", STORE, "--output", f"{STORE}/config", "--once"),
        "give a directory outside of it",
        [("run", STORE, "--output", NEW, "--once")],
    ),
    Case(
        ("run", STORE, "--output", OUTPUT, "--once", "--replay-from", "x"),
        "must be earliest or a physical offset",
        [
            ("run", STORE, "--output", OUTPUT, "--once", "--replay-from", place)
            for place in ("earliest", 0)
        ],
    ),
    Case(
        ("run", STORE, "--output", OUTPUT, "--once", "--metrics-queues", 3),
        "needs --metrics-port",
        [("run", STORE, "--output", OUTPUT, "--once", "--metrics-queues", 3, "--metrics-port", 0)],
    ),
    Case((*RUN, "--conf", "x"), "must be spark.SOMETHING=VALUE", [(*RUN, "--conf", "spark.x=1")]),
    Case(
        (*RUN, "--latency", "x"),
        "must be a number with ms, s, m, h or d",
        [(*RUN, "--latency", text) for text in ("80ms", "1s", "1m", "1h", "1d")],
    ),
    Case(
        (*RUN, "--include-internal"),
        "need --delta or --kafka",
        [(*RUN, "--include-internal", "--delta", NEW), (*KAFKA, "--include-internal")],
    ),
    Case(
        (*RUN, "--delta", NEW, "--no-inflate-bodies", "--max-inflated-bytes", "1m"),
        "give --no-inflate-bodies or --max-inflated-bytes",
        [
            (*RUN, "--delta", NEW, "--no-inflate-bodies"),
            (*RUN, "--delta", NEW, "--max-inflated-bytes", "1m"),
        ],
    ),
    Case(
        (*RUN, "--delta-store-id", "a" * 32),
        "need --delta URL",
        [(*RUN, "--delta-store-id", "a" * 32, "--delta", NEW)],
    ),
    Case(
        (*RUN, "--kafka-topics", "*"), "need --kafka HOST:PORT", [(*KAFKA, "--kafka-topics", "*")]
    ),
    Case(
        (*KAFKA, "--no-kafka-mirror"),
        "without --kafka-arrivals TOPIC",
        [(*KAFKA, "--no-kafka-mirror", "--kafka-arrivals", "arrivals")],
    ),
    Case(
        (*KAFKA, "--kafka-arrivals", "a b"),
        "letters, digits and . _ -",
        [(*KAFKA, "--kafka-arrivals", "A-1._")],
    ),
    Case(
        (*KAFKA, "--kafka-topic-format", "x"),
        "must hold {topic} once",
        [(*KAFKA, "--kafka-topic-format", "x.{topic}")],
    ),
    Case(
        ("search-time", STORE, "Topic", 0, "x"),
        f"{TIMES}, 1h (before now), or ms since the epoch",
        [
            ("search-time", STORE, "Topic", 0, time)
            for time in (
                *TIMES.replace("'", "").removesuffix(" (or local)").split(", "),
                "1h",
                "1900000000000",
            )
        ],
    ),
    Case(
        ("query", STORE, "Topic", "--key", "k", "--end", "x"),
        f"{TIMES}, -1h (before now), or ms since the epoch",
        [
            ("query", STORE, "Topic", "--key", "k", "--end", time)
            for time in (
                *TIMES.replace("'", "").removesuffix(" (or local)").split(", "),
                "-1h",
                "1900000000000",
            )
        ],
    ),
    Case(
        ("verify", STORE, "--output", OUTPUT, "--dry-run"),
        "is for --repair",
        [("verify", STORE, "--output", OUTPUT, "--dry-run", "--repair")],
    ),
    Case(
        ("verify", STORE, "--output", OUTPUT, "--repair", "--sealed", "--dry-run"),
        "leave one out",
        [
            ("verify", STORE, "--output", OUTPUT, "--repair", "--dry-run"),
            ("verify", STORE, "--output", OUTPUT, "--repair", "--sealed"),
        ],
    ),
)


@pytest.fixture
def place(ram_path: Path) -> dict[str, Path]:
    """A broker's store with a group, and an output of it."""
    small = SmallStore(ram_path / "store")
    for _ in range(3):
        properties = b"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02b\x011\x02"
        small.append(ord("a"), properties=properties)
    store = small.write()
    (store / "config").mkdir(exist_ok=True)
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"Topic@billing":{0:1}}}')
    output = DerivedOutput(store, ram_path / "all" / store.name)
    output.start()
    shutil.copytree(output.root / "index", store / "index", dirs_exist_ok=True)
    return {STORE: store, OUTPUT: output.root, ALL: output.root.parent}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("case", CALLS, ids=lambda case: " ".join(map(str, case.wrong)))
def test_a_wrong_call(place: dict[str, Path], call: Call, case: Case) -> None:
    """Refused in one line, and each call that it advises is taken."""

    def made(words: Words, new: Path) -> list[str]:
        names = {**place, NEW: new}
        pattern = re.compile("|".join(names))
        return [pattern.sub(lambda found: str(names[found[0]]), str(word)) for word in words]

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("reput: error: ")]

    nowhere = place[STORE].with_name("nowhere")
    done = call(*made(case.wrong, nowhere))
    assert done.returncode in (1, 2)
    (line,) = lines(done.stderr)
    assert case.advice in line
    for number, right in enumerate(case.right):
        done = call(*made(right, nowhere.with_name(f"new{number}")))
        assert lines(done.stderr) == [], (right, done.stderr)
        # what differs from another moment, and a lag, are answers
        assert done.returncode == (1 if "--since" in right else 0), (right, done.stderr)


def _moved(store: Path) -> str:
    conf = store / "broker.conf"
    conf.write_text(conf.read_text() + "storePathCommitLog=/nowhere/commitlog\n")
    return "correct the file or pass another with --broker-conf"


def _correct(store: Path) -> Words:
    conf = store / "broker.conf"
    conf.write_text(conf.read_text().replace("/nowhere/commitlog", str(store / "commitlog")))
    return ()


def _another(store: Path) -> Words:
    conf, other = store / "broker.conf", store.with_name("other.conf")
    other.write_text(conf.read_text().replace("/nowhere/commitlog", str(store / "commitlog")))
    return ("--broker-conf", other)


def _without_comma(store: Path) -> str:
    conf, log = store / "broker.conf", store / "commitlog"
    (store / "archive").mkdir()
    lines = f"storePathCommitLog={log}\nreadOnlyCommitLogStorePaths={store / 'archive'}\n"
    conf.write_text(conf.read_text() + lines)
    return (
        "end storePathCommitLog with one to have both read, or take readOnlyCommitLogStorePaths out"
    )


def _with_comma(store: Path) -> Words:
    conf = store / "broker.conf"
    conf.write_text(re.sub("(storePathCommitLog=.*)", r"\1,", conf.read_text()))
    return ()


def _without_archive(store: Path) -> Words:
    conf = store / "broker.conf"
    conf.write_text(re.sub("readOnlyCommitLogStorePaths=.*\n", "", conf.read_text()))
    return ()


def _literal(store: Path) -> str:
    conf = store / "broker.conf"
    conf.write_text(conf.read_text() + "storePathCommitLog=nowhere/commitlog\n")
    return "write whole paths, with commas and no spaces between, there or in another file"


def _whole(store: Path) -> Words:
    conf = store / "broker.conf"
    conf.write_text(conf.read_text().replace("nowhere/commitlog", str(store / "commitlog")))
    return ()


def _whole_elsewhere(store: Path) -> Words:
    conf, other = store / "broker.conf", store.with_name("other.conf")
    other.write_text(conf.read_text().replace("nowhere/commitlog", str(store / "commitlog")))
    return ("--broker-conf", other)


def _overlap(store: Path) -> str:
    log = store / "commitlog"
    shutil.copy(min(log.iterdir()), log / f"{1000:020}")
    return "remove the one that does not belong to this log"


def _remove(store: Path) -> Words:
    (store / "commitlog" / f"{1000:020}").unlink()
    return ()


def _other_size(store: Path) -> str:
    conf = store / "broker.conf"
    conf.write_text(conf.read_text() + "mappedFileSizeCommitLog=8192\n")
    return "set mappedFileSizeCommitLog (broker.conf or --commitlog-file-size) to the size"


def _size_by_option(store: Path) -> Words:
    size = min((store / "commitlog").iterdir()).stat().st_size
    return ("--commitlog-file-size", size)


def _size_by_file(store: Path) -> Words:
    conf = store / "broker.conf"
    size = min((store / "commitlog").iterdir()).stat().st_size
    conf.write_text(conf.read_text().replace("8192", str(size)))
    return ()


def _torn_offsets(store: Path) -> str:
    offsets = store / "config" / "consumerOffset.json"
    shutil.copy(offsets, f"{offsets}.copy")
    offsets.write_text(offsets.read_text()[:-3])
    return "restore"


def _restore(store: Path) -> Words:
    offsets = store / "config" / "consumerOffset.json"
    shutil.copy(f"{offsets}.copy", offsets)
    return ()


STATES: Sequence[tuple[Callable[[Path], str], Sequence[Callable[[Path], Words]], Words]] = (
    (_moved, (_correct, _another), ("status", STORE)),
    (_without_comma, (_with_comma, _without_archive), ("status", STORE)),
    (_literal, (_whole, _whole_elsewhere), ("status", STORE)),
    (_overlap, (_remove,), ("status", STORE)),
    (_other_size, (_size_by_option, _size_by_file), ("status", STORE)),
    (_torn_offsets, (_restore,), ("groups", "list", STORE)),
)


@pytest.mark.parametrize(
    ("spoil", "heal", "command"),
    [(spoil, heal, command) for spoil, heals, command in STATES for heal in heals],
)
def test_a_wrong_state(
    place: dict[str, Path],
    call: Call,
    spoil: Callable[[Path], str],
    heal: Callable[[Path], Words],
    command: Words,
) -> None:
    """Each way that the error names makes the same call right."""
    store = place[STORE]
    words = [store if word == STORE else word for word in command]
    advice = spoil(store)
    done = call(*words)
    assert (done.returncode in (1, 2), advice in done.stderr) == (True, True), done.stderr
    done = call(*words, *heal(store))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def damaged(ram_path: Path) -> Path:
    """A store without queues, whose second message is damaged."""
    small = SmallStore(ram_path / "damaged")
    second = [small.append() for _ in range(4)][1]
    store = small.write()
    shutil.rmtree(store / "consumequeue")
    with min((store / "commitlog").iterdir()).open("r+b") as log:
        log.seek(second + 4)
        log.write(b"damaged!")
    return store


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("option", "advice", "others"),
    [
        ("--on-corrupt", "set onCorrupt (run: --on-corrupt) to quarantine", ["quarantine"]),
        ("--on-queue-gap", "set --on-queue-gap to rocketmq or blank", ["rocketmq", "blank"]),
    ],
)
def test_a_run_that_stops_at_damage(
    damaged: Path, tmp_path: Path, call: Call, option: str, advice: str, others: Sequence[str]
) -> None:
    """It goes on from there with each value that it names."""
    for value in others:
        run = ("run", damaged, "--output", tmp_path / value, "--once", option)
        done = call(*run, "fail")
        assert (done.returncode, advice in done.stderr) == (1, True), done.stderr
        assert call(*run, value).returncode == 0
        assert call("verify", damaged, "--output", tmp_path / value).returncode == 0


def test_a_read_that_stops_at_damage(damaged: Path, tmp_path: Path, call: Call) -> None:
    """Without the option the rest is exported."""
    done = call("export", damaged, tmp_path / "failed", "--fail-on-data-loss")
    assert (done.returncode, "leave out --fail-on-data-loss" in done.stderr) == (1, True)
    assert call("export", damaged, tmp_path / "exported").returncode == 0


@pytest.mark.usefixtures("spark")
def test_queues_that_are_a_link(place: dict[str, Path], call: Call) -> None:
    """Queues that cannot be replaced are built elsewhere."""
    store, aside = place[STORE], place[STORE].with_name("aside")
    (store / "consumequeue").rename(aside)
    (store / "consumequeue").symlink_to(aside)
    done = call("rebuild", store)
    assert "build into another output with --output DIR" in done.stderr
    assert done.returncode == 2
    assert call("rebuild", store, "--output", store.with_name("new")).returncode == 0


def test_a_record_of_settings_that_cannot_be_read(place: dict[str, Path], call: Call) -> None:
    """It is removed, and the output goes on."""
    path = place[OUTPUT] / "reput" / "built.json"
    path.write_text("{")
    verify = ("verify", place[STORE], "--output", place[OUTPUT])
    done = call(*verify)
    assert (done.returncode, f"cannot read {path}" in done.stderr) == (1, True)
    assert "remove it and call again with the options that the output was built with" in done.stderr
    path.unlink()
    assert call(*verify).returncode == 0


def test_stores_of_one_name(tmp_path: Path, place: dict[str, Path], call: Call) -> None:
    """They would have one output, until links give them names of their own."""
    outputs, links = tmp_path / "outputs", tmp_path / "links"
    links.mkdir()
    for name in ("a", "b"):
        store = shutil.copytree(place[STORE], tmp_path / "stores" / name / "store")
        (links / name).symlink_to(store)
        DerivedOutput(store, outputs / name).start()
    done = call("verify", "--stores", f"{tmp_path}/stores/*/store", "--outputs", outputs)
    assert "let --stores match symbolic links of different names" in done.stderr
    assert done.returncode == 2
    done = call("verify", "--stores", f"{links}/*", "--outputs", outputs)
    assert (done.returncode, done.stderr) == (0, "")
