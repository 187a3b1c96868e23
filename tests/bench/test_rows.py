"""The suite reports goals, misses, failures and wrong arguments."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench import __main__ as command
from bench import measures, report, reput, rocketmq, scaling, suite
from bench.context import Context
from bench.logs import Log
from bench.measures import Figures, Row
from bench.processes import BenchError, line_process, run_to_exit

LOG = Log(Path("store"), 300, 1000, 50_000, (50_000,), 1 << 20)


def context(*wanted: str, gib: float = 8.0) -> Context:
    return Context(Path("data"), frozenset(wanted), gib=gib)


def test_every_round_runs_every_system_once() -> None:
    """In turns, not one after the other, so that ratios are those of each round."""
    order: list[str] = []

    def system(name: str, seconds: float) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return seconds

        return run

    systems = {"a": system("a", 2), "b": system("b", 4)}
    ran = measures.alternate(2, systems, lambda _: None)
    assert order == ["a", "b", "a", "b"]
    rates = {name: figures.as_rate(8, "/s") for name, figures in ran.items()}
    assert measures.ratios(rates["a"], rates["b"]).values == (2.0, 2.0)


def test_ratios_go_by_round() -> None:
    """A machine that is half as fast in one round changes no ratio; the median is the ratios'."""
    ours = measures.Figures("/s", (10.0, 5.0, 9.0))
    other = measures.Figures("/s", (2.0, 1.0, 3.0))
    assert measures.ratio_text(measures.ratios(ours, other)) == "5.00x (3.00 to 5.00)"
    assert measures.share_text(measures.ratios(other, ours)) == "20.0% (20.0% to 33.3%)"


def test_percentiles_go_by_weight() -> None:
    """The value below which the share of the weight lies."""
    values, weights = np.array([30.0, 10.0, 20.0]), np.array([1, 98, 1])
    assert [measures.percentile(values, weights, share) for share in (0.5, 0.99, 1.0)] == [
        10.0, 20.0, 30.0,
    ]  # fmt: skip


def test_time_that_grows_faster_than_size_is_found() -> None:
    """Linear is 1, a fixed cost lies below, the worst pair counts."""
    assert scaling.steepness({1: 2.0, 4: 8.0, 12: 24.0}) == 1.0
    assert scaling.steepness({1: 5.0, 4: 8.0}) < 1.0
    assert scaling.steepness({1: 2.0, 4: 8.0, 12: 36.0}) == 1.5


@pytest.mark.parametrize("entries", [999, 1001])
def test_an_incomplete_rebuild_is_no_time(entries: int) -> None:
    """Neither RocketMQ's nor ours."""
    answer: dict[str, Any] = {"entries": entries, "dispatch_seconds": 1.0, "flush_seconds": 0.5}
    with pytest.raises(BenchError, match=r"of 1,000 messages"):
        rocketmq._checked(answer, LOG)
    with pytest.raises(BenchError, match=r"of 1,000 messages"):
        reput._checked({"messages": entries, "end_offset": LOG.end_offset}, LOG)
    assert rocketmq._checked(answer | {"entries": 1000}, LOG).flushed_seconds == 1.5


def test_goals_are_judged_at_their_size_only() -> None:
    """A small log says nothing about them, either way."""
    assert context(gib=8.0).judged(False) is False
    assert context(gib=1.0).judged(True) is None


def test_a_failure_is_a_missed_row_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows before it in its group stay."""

    def breaks(_: Context) -> Iterator[Row]:
        yield Row("a", "", "", "1x", True)
        raise BenchError("it broke")

    def works(_: Context) -> Iterator[Row]:
        yield Row("c", "", "", "1x", True)

    monkeypatch.setattr(suite, "GROUPS", ((breaks, ("a", "b")), (works, ("c",))))
    rows = list(suite.measure(context("a", "b", "c")))
    assert [(row.name, row.met) for row in rows] == [("a", True), ("b", False), ("c", True)]
    assert rows[1].notes == ["it broke"]


def test_the_table_names_every_miss(capsys: pytest.CaptureFixture[str]) -> None:
    """It shows figures and notes as they are, brackets too."""
    figures = {"reput": Figures("s", (3.0, 1.0, 2.0)), "dd": Figures("s", (1.0,))}
    rows = [
        Row("first", "a row", ">= 2x", "1.00x", False, figures, notes=["[note]"]),
        Row("second", "another", "", "FAILED", False),
        Row("third", "no goal", "", "1", None),
    ]
    report.show(rows, Console(width=200))
    shown = capsys.readouterr().out
    assert "missed: first, second" in shown
    assert "first: [note]" in shown
    assert [shown.index(word) for word in ("reput, s", "dd, s")]


def test_the_result_file_holds_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row's rounds, and the machine; no path of it."""
    monkeypatch.setattr(sys, "argv", ["x", "--json", "results.json", "--plot=/x", "--quick"])
    rows = [Row("first", "a row", ">= 2x", "1.00x", False, {"reput": Figures("s", (3.0, 1.0))})]
    report.write_json(tmp_path / "out.json", report.about(context()), rows)
    text = (tmp_path / "out.json").read_text()
    (run,) = json.loads(text)
    assert run["rows"][0]["figures"]["reput"]["values"] == [3.0, 1.0]
    assert run["rows"][0]["met"] is False
    assert run["about"]["cores"] >= 1
    assert run["about"]["command"] == "python -m bench --quick"
    assert str(Path(report.__file__).parent.parent) not in text


def test_the_result_file_keeps_the_last_of_each_row(tmp_path: Path) -> None:
    """Rows that the newer run did not measure are kept; the same run keeps its last state."""
    path = tmp_path / "out.json"
    figures = {"reput": Figures("M messages/s", (3.0, 1.0))}
    old = [Row(name, "old", "", "1", None, figures) for name in ("first", "second")]
    new = [Row("second", "new", ">= 2x", "2", True, figures, {"a": 1}, ["note"])]
    report.write_json(path, {"commit": "a"}, old)
    report.write_json(path, {"commit": "b"}, new)
    newer = [*new, Row("third", "new", "", "3", None)]
    report.write_json(path, {"commit": "b"}, newer)
    assert report.read_rows(path) == [old[0], *newer]
    assert [run["about"]["commit"] for run in json.loads(path.read_text())] == ["a", "b"]


def test_rows_and_sizes_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown rows are refused; quick is small; what is said wins."""
    monkeypatch.setattr(rocketmq, "available", lambda: True)
    with pytest.raises(SystemExit):
        command.parse(["--rows", "idle,nonsense"])
    quick = command.make_context(command.parse(["--quick"]))
    assert (quick.gib, quick.row_names) == (1.0, frozenset(suite.QUICK_ROWS))
    chosen = command.make_context(command.parse(["--rows", "idle", "--gib", "0.5"]))
    assert (chosen.gib, chosen.row_names, chosen.rounds) == (0.5, frozenset({"idle"}), 3)
    halves = [command.parse(["--half", half]).row_names for half in ("1", "2")]
    assert halves[0] + halves[1] == list(suite.ROW_NAMES)
    everything = command.make_context(command.parse([]))
    assert everything.row_names == set(suite.ROW_NAMES)
    assert dataclasses.replace(everything, started=0.0).live_seconds == 300


def test_children_answer_and_end_with_the_block() -> None:
    """One line each way; afterwards the process is gone."""
    script = "import sys\nfor line in sys.stdin: print(dict(), flush=True)"
    with line_process([sys.executable, "-c", script], "an echo") as process:
        assert process.ask("anything", 30) == {}
    assert process.process.poll() is not None


def test_a_child_that_fails_says_why() -> None:
    """The end of its stderr is in the error."""
    with pytest.raises(BenchError, match=r"(?s)a thing ended with exit 1.*out of luck"):
        run_to_exit([sys.executable, "-c", "raise SystemExit('out of luck')"], "a thing", 30)
