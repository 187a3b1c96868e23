"""An error's advice to give, leave out, set or remove something is followed where it is printed.

Each case is a wrong call, or a wrong state, and what its error says to do instead. Commands that an
error prints whole are followed in ``test_advice``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.readers.stores import SmallStore
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput

Words = Sequence[object]
STORE, OUTPUT, ALL, NEW, CATALOGS = "STORE", "OUTPUT", "ALL", "NEW", "CATALOGS"
"""Stand for the store, an output of it, the directory that holds this by the store's name, a
directory that does not exist, and a file of Iceberg catalogs."""


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
ICEBERG = ("--iceberg", "lake.db.t", "--iceberg-config", CATALOGS)
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
    *(
        Case(
            ("diff", STORE, STORE, *option),
            "--as-of and --output need --since",
            [("diff", STORE, "--since", "offset:0", *option)],
        )
        for option in (("--output", STORE), ("--as-of", "2100-01-01"))
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
        "need --delta, --iceberg or --kafka",
        [
            (*RUN, "--include-internal", "--delta", NEW),
            (*RUN, "--include-internal", *ICEBERG),
            (*KAFKA, "--include-internal"),
        ],
    ),
    Case(
        (*RUN, "--iceberg-store-id", "a"),
        "need --iceberg CATALOG.NAMESPACE.TABLE",
        [(*RUN, "--iceberg-store-id", "a", *ICEBERG)],
    ),
    Case((*RUN, "--iceberg", "lake.db.t"), "needs --iceberg-config FILE", [(*RUN, *ICEBERG)]),
    Case(
        (*RUN, "--compact-every", "1h"),
        "needs --delta or --iceberg",
        [
            (*RUN, "--compact-every", "1h", "--delta", NEW),
            (*RUN, "--compact-every", "1h", *ICEBERG),
        ],
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
        (*RUN, "--delta", NEW, "--delta-partition-by", "month"),
        "by topic, day, hour and queue(N)",
        [
            (*RUN, "--delta", NEW, "--delta-partition-by", parts)
            for parts in ("topic,day,queue(8)", "hour", "")
        ],
    ),
    Case(
        (*RUN, "--delta", NEW, "--delta-sort-by", "body"),
        "sorted by topic, ",
        [(*RUN, "--delta", NEW, "--delta-sort-by", "topic")],
    ),
    Case(
        (*RUN, "--delta-file-size", "64m"),
        "need --delta URL",
        [(*RUN, "--delta-file-size", "64m", "--delta", NEW)],
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
    Case(
        ("top", STORE, "--output", OUTPUT),
        "shows the same once, with --watch again and again, with --json to programs",
        [("status", STORE, "--output", OUTPUT), ("status", STORE, "--output", OUTPUT, "--json")],
    ),
    Case(
        ("groups", "clone", STORE, "billing", "other", "--topic", "Elsewhere"),
        "reput groups show lists where it has",
        [
            ("groups", "show", STORE, "billing"),
            ("groups", "clone", STORE, "billing", "other", "--topic", "Topic"),
        ],
    ),
    Case(
        ("groups", "reset", STORE, "a b", "--new", "--topic", "Topic", "--earliest"),
        "the name of a new group has letters, digits, %, |, - and _",
        [("groups", "reset", STORE, "%a|B-1_", "--new", "--topic", "Topic", "--earliest")],
    ),
    Case(
        ("expire", STORE, "--output", OUTPUT, "--remove-unused"),
        "needs --apply",
        [("expire", STORE, "--output", OUTPUT, "--remove-unused", "--apply")],
    ),
    Case(
        ("run", "--stores", STORE, "--outputs", ALL, "--dry-run"),
        "--dry-run is for one store; leave it out with --stores",
        [("run", "--stores", STORE, "--outputs", ALL, "--once")],
    ),
    Case(
        ("status", STORE, "--stores", STORE, "--outputs", ALL),
        "give either STORE or --stores",
        [("status", STORE), ("status", "--stores", STORE, "--outputs", ALL)],
    ),
    Case(
        ("diff", STORE, f"{STORE}/nowhere"),
        "give a store's root, or an output's",
        [("diff", STORE, STORE), ("diff", OUTPUT, OUTPUT)],
    ),
    Case(
        ("inspect", "checkpoint", NEW),
        "give a store's root",
        [("inspect", "checkpoint", STORE)],
    ),
    Case(
        ("rebuild", STORE, "--output", OUTPUT, "--sealed", "--executors"),
        "leave out --executors",
        [("rebuild", STORE, "--output", OUTPUT, "--sealed")],
    ),
    Case(
        ("rebuild", STORE, "--output", NEW, "--drop-old"),
        "give the output that was rebuilt",
        [("rebuild", STORE, "--output", OUTPUT, "--drop-old")],
    ),
    Case(
        ("shadow", STORE, "--output", STORE),
        "give a directory for queues to compare",
        [("shadow", STORE, "--output", NEW, "--once")],
    ),
    Case(
        ("tail", STORE, "Topic", "--sql", "c = NULL"),
        "write IS NULL",
        [("tail", STORE, "Topic", "--sql", "c IS NULL")],
    ),
    Case(
        ("tail", STORE, "Topic", "--tag", "||"),
        "give * for all",
        [("tail", STORE, "Topic", "--tag", "*")],
    ),
    Case(
        ("run", STORE, "--output", OUTPUT, "--once", "--replay-from", 1),
        "no record starts there, one does at 0",
        [("run", STORE, "--output", OUTPUT, "--once", "--replay-from", 0)],
    ),
    Case(
        ("produce", NEW, "--count", 1, "--size", 9000, "--commitlog-file-size", "8k"),
        "make the files larger (--commitlog-file-size)",
        [("produce", NEW, "--count", 1, "--size", 9000, "--commitlog-file-size", "16k")],
    ),
    Case(
        (*REWIND, "--to-file", "5"),
        f"the log has no file '5'; it has {'0' * 20} to {'0' * 20}",
        [(*REWIND, "--to-file", "0" * 20)],
    ),
    Case(
        (*REWIND, "--to-batch", 3),
        "give the --checkpoint of reput run, or rewind to an offset, a file or a time",
        [
            (*REWIND, "--to-offset", 0),
            (*REWIND, "--to-file", "0" * 20),
            (*REWIND, "--to-time", "2020-01-01T00:00Z"),
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
    catalogs = ram_path / "catalogs.toml"
    catalogs.write_text(f'[lake]\ntype = "sql"\nuri = "sqlite:///{ram_path}/lake.db"\n')
    return {STORE: store, OUTPUT: output.root, ALL: output.root.parent, CATALOGS: catalogs}


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
