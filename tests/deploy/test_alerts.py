"""The alerts: each has a runbook, names only series that a run emits, and fires for its cause. The
dashboard names no others either, and Prometheus can parse it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from reput.upkeep.watch.series import HISTOGRAM, PREFIX, SERIES, SUMMARY
from tests.support.cli import ROOT
from tests.support.prometheus import program

FOLDER = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "reput.json"
PARTS = {SUMMARY: ("_sum", "_count"), HISTOGRAM: ("_bucket", "_sum", "_count")}


def _alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def _cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.test.yml").read_text("utf-8"))[
        "tests"
    ]
    return found


def test_every_alert_has_its_runbook_and_a_case() -> None:
    """A section of its name, which says what it means, where to look and what to do; there is no
    section without an alert, and no alert that no case lets fire."""
    names = [alert["alert"] for alert in _alerts()]
    assert len(set(names)) == len(names) >= 12
    sections = re.split(r"^## ", RUNBOOKS.read_text("utf-8"), flags=re.M)[1:]
    assert [section.partition("\n")[0] for section in sections] == names
    for section in sections:
        assert re.findall(r"^\*\*([\w ]+)\*\*", section, re.M) == ["It means", "Look", "Do"]
    for alert in _alerts():
        assert alert["annotations"]["runbook"] == f"docs/runbooks.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
    tests = [one for case in _cases() for one in case["alert_rule_test"]]
    assert [one["alertname"] for one in tests if one["exp_alerts"]] == names
    assert [one["alertname"] for one in tests if not one["exp_alerts"]] == names


@pytest.mark.parametrize(
    "path",
    [FOLDER / "alerts.yml", FOLDER / "alerts.test.yml", RUNBOOKS, DASHBOARD],
    ids=lambda path: path.name,
)
def test_only_series_that_are_emitted_are_named(path: Path) -> None:
    """In expressions, in the cases' input and in what runbooks tell to look at."""
    emitted = {PREFIX + one.name + part for one in SERIES for part in PARTS.get(one.kind, ())} | {
        PREFIX + one.name for one in SERIES
    }
    named = set(re.findall(rf"\b{PREFIX}\w+", path.read_text("utf-8")))
    assert len(named) > 10
    assert named <= emitted


def test_each_alert_fires_for_its_cause_and_for_no_other() -> None:
    """As Prometheus evaluates them: also none for a healthy run."""
    done = subprocess.run(
        [program("promtool"), "test", "rules", FOLDER / "alerts.test.yml"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_parses_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """With the values that Grafana puts in for its variables."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    expressions = [target["expr"] for one in panels for target in one.get("targets", ())]
    assert len(expressions) > 20
    rules = [
        {
            "record": f"dashboard:{number}",
            "expr": expression.replace("$store", ".*").replace("$__rate_interval", "1m"),
        }
        for number, expression in enumerate(expressions)
    ]
    assert not any("$" in one["expr"] for one in rules)
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), "utf-8")
    done = subprocess.run(
        [program("promtool"), "check", "rules", path],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafanas_models_have_every_field_of_the_dashboard() -> None:
    """As Grafana's own library reads it: a field that it does not know is gone, and is noticed."""
    plugins.register_default_plugins()
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert list(_lost(dashboard, _as_modelled(dashboard))) == []
    misspelt = [
        (dashboard, "refesh"),
        (dashboard["panels"][1], "gridpos"),
        (dashboard["panels"][1]["targets"][0], "exprr"),
        (dashboard["panels"][1]["fieldConfig"]["defaults"], "unitt"),
    ]
    for part, field in misspelt:
        part[field] = "s"
        (place,) = _lost(dashboard, _as_modelled(dashboard))
        assert place.endswith(f"/{field}")
        del part[field]


def _as_modelled(dashboard: dict[str, Any]) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def _lost(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Yield the places of ours where the other has nothing or something else; it may have more."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from _lost(value, theirs.get(key), f"{place}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (value, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _lost(value, other, f"{place}/{number}")
    elif ours != theirs:
        yield place


def test_every_panel_has_its_place_and_reads_the_provisioned_source() -> None:
    """No two overlap, and each asks the data source that deploy/grafana provisions."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    cells = [
        (x, y)
        for place in (one["gridPos"] for one in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    folder = DASHBOARD.parent / "provisioning" / "datasources"
    (source,) = yaml.safe_load((folder / "prometheus.yml").read_text("utf-8"))["datasources"]
    for one in panels:
        for target in one.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": source["uid"]}
