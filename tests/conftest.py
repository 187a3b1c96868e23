"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.sources.commitlog import CommitLogDataSource
from reput.sources.consumequeue import ConsumeQueueDataSource
from reput.streaming.spark.session import session
from tests.interop.rocketmq import release
from tests.support.cli import call
from tests.support.golden import unpack_golden
from tests.support.memory import ram_path
from tests.support.seeds import seed

__all__ = ["call", "ram_path", "release", "seed"]

STARTED_FIRST = (
    "torture", "crash", "interop", "deploy", "test_examples.py", "test_packaging.py", "cli",
    "streaming", "checkpoints", "sources", "upkeep",
)  # fmt: skip
"""Folders with long files, and such files beside them: if one of them came last, other cores would
wait for it."""


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """Unpacks a golden store into the test's own directory."""
    return lambda name: unpack_golden(name, tmp_path)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session with the dispatcher's own settings, which knows both sources: starting one
    takes seconds."""
    with session({}) as opened:
        for source in (CommitLogDataSource, ConsumeQueueDataSource):
            opened.dataSource.register(source)
        yield opened


def pytest_xdist_auto_num_workers() -> int:
    """Two processes for each core: most of them wait, for a broker's second, a kill or a JVM."""
    return (os.cpu_count() or 1) * 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put folders with long files first and keep the order of files, each of which finishes with
    one release before the next: what it sets up for a release it sets up once."""
    tests = Path(__file__).parent
    files = {path: number for number, path in enumerate(dict.fromkeys(i.path for i in items))}

    def place(item: pytest.Item) -> tuple[int, int, str]:
        folder = item.path.relative_to(tests).parts[0]
        first = STARTED_FIRST.index(folder) if folder in STARTED_FIRST else len(STARTED_FIRST)
        case = getattr(item, "callspec", None)
        return first, files[item.path], case.params.get("release", "") if case else ""

    items.sort(key=place)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    """Say below everything else what was not tested, and why: a green run without Java and Maven
    has not met RocketMQ."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.write_line(f"tests that did not run: {reasons.total()}", red=True)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4}  {reason}", red=True)
