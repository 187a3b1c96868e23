"""The alerts: each has a runbook, names only series that a run emits, and fires for its cause."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import ROOT
from upkeep.series import HISTOGRAM, PREFIX, SERIES, SUMMARY

FOLDER = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PROMTOOL = shutil.which("promtool") or str(CACHE / "reput" / "promtool")
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


@pytest.mark.parametrize("place", ["alerts.yml", "alerts.test.yml", "runbooks.md"])
def test_only_series_that_are_emitted_are_named(place: str) -> None:
    """In expressions, in the cases' input and in what runbooks tell to look at."""
    path = RUNBOOKS if place == RUNBOOKS.name else FOLDER / place
    emitted = {PREFIX + one.name + part for one in SERIES for part in PARTS.get(one.kind, ())} | {
        PREFIX + one.name for one in SERIES
    }
    named = set(re.findall(rf"\b{PREFIX}\w+", path.read_text("utf-8")))
    assert len(named) > 10
    assert named <= emitted


@pytest.mark.skipif(
    not Path(PROMTOOL).exists(), reason="no promtool: deploy/install-promtool.sh installs it"
)
def test_each_alert_fires_for_its_cause_and_for_no_other() -> None:
    """As Prometheus evaluates them: also none for a healthy run."""
    done = subprocess.run(
        [PROMTOOL, "test", "rules", FOLDER / "alerts.test.yml"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
