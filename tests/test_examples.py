"""The Spark programs of docs/reading.md run as they are shown, on what the log holds.

They share one fresh interpreter and session, in another directory and with nothing registered: to
start Spark takes longer than all of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docs.examples.made_up_store import TOPICS, write_store
from reput.store.log import java
from tests.support.cli import ROOT, reput_json
from tests.support.golden import log_records, unpack_golden
from tests.support.pictures import texts_of
from tests.support.plain_rows import is_internal, plain_row
from tests.support.queue_units import queue_units
from tests.support.standalone import QUICK_JVM

MINUTE_MS = 60_000
RUN_EACH = """
import json, runpy, sys
page, sources, example, *stores = sys.argv[1:]
spark = runpy.run_path(page)["spark"]
for name in ("rocketmq-commitlog", "rocketmq-consumequeue"):
    found = spark.read.format(name).load(sources, includeBody="false")
    print(json.dumps([name, found.where('topic = "Orders"').count()]))
for store in stores:
    sys.argv[1:] = [store, store + ".svg"]
    table = runpy.run_path(example)["table"].set_index("minute")
    cells = table.stack().items()
    print(json.dumps([[int(at.timestamp() * 1000), topic, n] for (at, topic), n in cells if n]))
"""


@dataclass
class Run:
    """The output of the programs."""

    shown: str
    """By the program of the page."""
    counts: list[list[Any]]
    """By source, of one topic."""
    sources: Path
    """The store that was counted."""
    tables: dict[Path, list[list[Any]]]
    """By store, for the example's picture beside it."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each program once, but for the example: it runs on two stores."""
    place = tmp_path_factory.mktemp("programs")
    # as the README's own command makes it
    store = place / "store"
    reput_json("produce", store, "--count", 100, "--rate", 0, "--commitlog-file-size", "1m")
    page = (ROOT / "docs" / "reading.md").read_text("utf-8")
    (text,) = re.findall(r"^## The log as a Spark table\n\n```py\n(.*?)^```", page, re.M | re.S)
    assert '"/tmp/mystore"' in text
    program = place / "page.py"
    program.write_text(text.replace('"/tmp/mystore"', repr(str(store))))
    sources, mixed = (unpack_golden(name, place) for name in ("broker", "mixed"))
    made_up = place / "made-up"
    write_store(made_up)
    stores = (mixed, made_up)
    example = ROOT / "docs" / "examples" / "messages_per_minute.py"
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *map(str, (program, sources, example, *stores))],
        capture_output=True, text=True, check=False, timeout=400, cwd=place,
        env={
            **os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg",
            "JDK_JAVA_OPTIONS": QUICK_JVM,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *shown, first, second, _, _ = lines = done.stdout.splitlines()
    return Run(
        "\n".join(shown), [json.loads(first), json.loads(second)], sources,
        {store: json.loads(line) for store, line in zip(stores, lines[-2:], strict=True)},
    )  # fmt: skip


@pytest.mark.extended
def test_the_program_that_reads_a_log_runs(run: Run) -> None:
    """It shows the topics."""
    assert "Topic_007" in run.shown


@pytest.mark.extended
def test_spark_finds_both_sources_by_itself(run: Run) -> None:
    """As many messages as RocketMQ's own queues have units."""
    count = sum(unit.topic == "Orders" for unit in queue_units(run.sources))
    assert count == 6000
    assert run.counts == [["rocketmq-commitlog", count], ["rocketmq-consumequeue", count]]


@pytest.mark.extended
def test_messages_per_minute(run: Run) -> None:
    """Counts equal a loop over the plain decoder's records of what consumers see; the pictures are
    some."""
    for store, table in run.tables.items():
        drawn = {(minute, topic): int(count) for minute, topic, count in table}
        wanted = Counter(
            (record.store_timestamp // MINUTE_MS * MINUTE_MS, java.decode(record.topic))
            for record in log_records(store)
            if not is_internal(plain_row(record))
        )
        assert drawn == dict(wanted)
        texts = texts_of(Path(f"{store}.svg"))
        assert {topic for _, topic in drawn} <= set(texts)  # as text, whatever their script
        times = [text for text in texts if re.fullmatch(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?", text)]
        assert len(times) >= 2  # an axis of minutes, not of years
    assert {topic for _, topic in drawn} == {java.decode(topic) for topic in TOPICS}
