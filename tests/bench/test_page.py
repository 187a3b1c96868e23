"""The documents' tables of the results: every row with its session and commit, ratios by round."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import page, report
from bench.measures import Figures, Row

MACHINE = {
    "cores": 2, "cpu": "Some CPU", "memory_gib": 24, "python": "3.11.7", "rocketmq": "5.3.3",
    "gib": 8.0, "rounds": 3,
}  # fmt: skip


def row(name: str, unit: str, **values: tuple[float, ...]) -> Row:
    figures = {system: Figures(unit, numbers) for system, numbers in values.items()}
    return Row(name, f"title of {name}", ">= 2x", "a result", True, figures)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    first = MACHINE | {"date": "2026-11-22T16:50:12+00:00", "commit": "0123456789ab-dirty"}
    later = MACHINE | {"date": "2026-11-22T17:40:00+00:00", "commit": "ba9876543210"}
    report.write_json(path, first, [row("idle", "% of a core", reput=(2.5,))])
    report.write_json(
        path, later,
        [
            row("whole-process-300", "s", reput=(2.0, 5.0, 4.0), RocketMQ=(6.0, 20.0, 8.0)),
            row("catch-up-300", "M messages/s", reput=(3.0, 1.0), RocketMQ=(1.0, 0.5)),
            row("queues-10000", "s", few=(1.5,), many=(5000.0,)),
        ],
    )  # fmt: skip
    return path


def test_every_row_says_its_session_and_commit(results: Path) -> None:
    """In the suite's order; a dirty tree is marked; units are written once."""
    lines = page.all_rows(results).splitlines()
    assert lines[2:6] == [
        "| `catch-up-300`: title of catch-up-300 | reput: 2; RocketMQ: 0.75 M messages/s "
        "| a result | >= 2x: met | 2026-11-22 17:40 | ba98765 |",
        "| `whole-process-300`: title of whole-process-300 | reput: 4; RocketMQ: 8 s | a result "
        "| >= 2x: met | 2026-11-22 17:40 | ba98765 |",
        "| `idle`: title of idle | reput: 2.5 % of a core | a result "
        "| >= 2x: met | 2026-11-22 16:50 | 0123456+ |",
        "| `queues-10000`: title of queues-10000 | few: 1.5; many: 5,000 s | a result "
        "| >= 2x: met | 2026-11-22 17:40 | ba98765 |",
    ]
    assert lines[6:] == [
        "",
        "Measured on 2 cores (Some CPU), 24 GiB of memory, Python 3.11.7, RocketMQ 5.3.3; main "
        "logs of 8 GiB; rounds: 3.",
    ]


def test_the_readmes_ratios_are_the_medians_of_the_rounds(results: Path) -> None:
    """Rates are ours over theirs, times theirs over ours; rows not measured are left out."""
    assert page.readme_table(results).splitlines()[2:5] == [
        "| catch-up, 300-byte bodies | 2 M messages/s | 0.75 M messages/s "
        "| **2.50x (2.00 to 3.00)** |",
        "| whole process, exec to exit | 4 s | 8 s | **3.00x (2.00 to 4.00)** |",
        "| idle | 2.5 % of a core |  |  |",
    ]
