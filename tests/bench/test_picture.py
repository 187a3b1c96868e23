"""The picture of the results: what it says, and that all of it is inside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import picture, report
from bench.measures import Figures, Row
from tests.support.cli import ROOT
from tests.support.pictures import size_of, texts_of

MACHINE = {"cores": 2, "date": "2026-11-22T00:00:00+00:00"}


def row(name: str, unit: str, **values: tuple[float, ...]) -> Row:
    figures = {system: Figures(unit, numbers) for system, numbers in values.items()}
    return Row(name, name, "", "", None, figures)


ROWS = [
    row("catch-up-300", "M messages/s", RocketMQ=(0.3, 0.31, 0.4), reput=(2.0, 3.54, 4.0)),
    row("catch-up-1200", "M messages/s", RocketMQ=(0.3,), reput=(1.71,)),
    row("latency-1000", "ms", p50=(132.0,), p99=(278.0,)),
    row("log-size", "s", **{"1.00 GiB": (0.31,), "12.00 GiB": (2.1, 2.2, 2.3)}),
    row("queues-100000", "s", reput=(17.1,)),
    row("queue-iteration", "M messages/s", all=(32.0,)),
]


def test_it_shows_the_medians_each_in_its_unit(tmp_path: Path) -> None:
    """A row of another kind does not stretch an axis, and nothing lies outside of the picture."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    assert picture.plot(path, MACHINE, ROWS)
    texts, (width, height) = texts_of(path), size_of(path)
    shown = {"RocketMQ", "reput", "0.31", "3.54", "0.30", "1.71", "132", "278"}
    assert shown <= set(texts)
    assert {"million messages/s", "ms", "300-byte bodies", "1,200-byte bodies"} <= set(texts)
    assert {"Size of the log", "GiB", "0.3", "2.2", "Number of queues, 2 GiB", "17.1"} <= set(texts)
    assert "32.00" not in texts and "32.0" not in texts
    assert "Number of cores, 4 GiB" not in texts
    assert all(0 < x < width and 0 < y < height for x, y in texts.values())


def test_labels_stand_above_the_whiskers() -> None:
    """A whisker of a curve ends below the median's label, as one of a bar does."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = pyplot.figure()
    axis, (curve, *_) = figure.subplots(), picture.CURVES
    points = {1.0: Figures("s", (0.2, 0.3, 0.9)), 4.0: Figures("s", (0.5,))}
    picture._draw_curve(axis, curve, {"reput": points})
    figure.canvas.draw()
    assert [text.get_text() for text in axis.texts] == ["0.3", "0.5"]
    for text, one in zip(axis.texts, points.values(), strict=True):
        top = axis.transData.transform((1.0, one.maximum))[1]
        assert text.get_window_extent().y0 > top
    pyplot.close(figure)


def test_nothing_to_draw(tmp_path: Path) -> None:
    """Only rows that no panel has."""
    pytest.importorskip("matplotlib")
    assert not picture.plot(tmp_path / "picture.svg", MACHINE, ROWS[-1:])
    assert list(tmp_path.iterdir()) == []


def test_the_picture_of_the_readme_is_that_of_the_result_file() -> None:
    """Every median that it shows is one of docs/bench.json."""
    texts = texts_of(ROOT / "docs" / "bench.svg")
    rows = {one.name: one for one in report.read_rows(ROOT / "docs" / "bench.json")}
    for panel in picture.PANELS:
        assert panel.unit in texts
        for group, series in ((group, name) for group in panel.groups for name in panel.series):
            assert f"{rows[group].figures[series].median:,.{panel.digits}f}" in texts
    for curve in picture.CURVES:
        assert curve.title in texts
        places = [place for found in curve.series.values() for place in found.values()]
        for measured, name in places:
            if name in rows[measured].figures:
                assert f"{rows[measured].figures[name].median:.1f}" in texts
