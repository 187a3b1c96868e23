"""A real Prometheus of a test's own: it scrapes one target and evaluates the repository's alerts.

Their durations, and the sizes and ages that would take as long to come about, are a sixtieth, so
that an alert fires within seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pytest
import yaml

from tests.support.cli import ROOT, kill_tree

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reput"
_UNITS = {"m": "s", "h": "m"}
LIMITS = {
    "* 3600": "* 60",
    "reput_watermark_timestamp_seconds > 300": "reput_watermark_timestamp_seconds > 5",
    "reput_lag_seconds > 60": "reput_lag_seconds > 1",
    "> 256 * 1024 * 1024": "> 256 * 1024 * 1024 / 60",
}
"""Texts of expressions that no duration is in, and what stands for them here."""


def program(name: str) -> Path:
    """Return promtool or prometheus, installed or in the cache; skips the test where it is not."""
    found = Path(shutil.which(name) or CACHE / name)
    if not found.exists():
        pytest.skip(f"no {name}: deploy/install-prometheus.sh installs it")
    return found


def scaled(text: str) -> str:
    """Return a sixtieth of each duration in a text: minutes become seconds, hours minutes; and of
    ``LIMITS``."""
    text = re.sub(r"\b(\d+)([mh])\b", lambda found: found[1] + _UNITS[found[2]], text)
    for limit, short in LIMITS.items():
        text = text.replace(limit, short)
    return text


def scaled_alerts() -> dict[str, Any]:
    """Return the repository's alerts, scaled."""
    rules: dict[str, Any] = yaml.safe_load(ALERTS.read_text("utf-8"))
    for alert in rules["groups"][0]["rules"]:
        alert["expr"] = scaled(alert["expr"])
        if "for" in alert:
            alert["for"] = scaled(alert["for"])
    return rules


def free_port() -> int:
    """Return a port of the loopback address that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Prometheus:
    """A server at the loopback address for the length of a ``with`` block."""

    def __init__(self, directory: Path, target: str) -> None:
        """``target`` is HOST:PORT of the metrics; the directory is made."""
        self._binary = program("prometheus")
        self._directory = directory
        directory.mkdir()
        self.target = target
        (directory / "alerts.yml").write_text(yaml.safe_dump(scaled_alerts()), "utf-8")
        config = {
            "global": {
                "scrape_interval": "500ms", "scrape_timeout": "500ms",
                "evaluation_interval": "500ms",
            },
            "rule_files": ["alerts.yml"],
            "scrape_configs": [{"job_name": "reput", "static_configs": [{"targets": [target]}]}],
        }  # fmt: skip
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        self._log = (self._directory / "log").open("wb")
        self._process = subprocess.Popen(
            [
                self._binary, f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'data'}", "--log.level=warn",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            self._await(self._is_ready, "its start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        kill_tree(self._process.pid)
        self._process.wait()
        self._log.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now; raises HTTPError for one that cannot be parsed."""
        found: list[dict[str, Any]] = self._get(f"query?query={quote(expression)}")["result"]
        return found

    def await_value(self, expression: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until an expression has a result; ``meanwhile`` is called again and again."""
        self._await(lambda: bool(self.query(expression)), expression, meanwhile)

    def await_alert(
        self, name: str, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Wait until the alert fires, and return it; ``meanwhile`` is called again and again."""
        fired: dict[str, Any] = {}
        self._await(lambda: bool(fired.update(self.firing()) or name in fired), name, meanwhile)
        found: dict[str, Any] = fired[name]
        return found

    def await_silence(self) -> None:
        """Wait until no alert fires."""
        self._await(lambda: not self.firing(), "silence")

    def firing(self) -> dict[str, dict[str, Any]]:
        """Return the alerts that fire now, by name."""
        alerts = self._get("alerts")["alerts"]
        return {one["labels"]["alertname"]: one for one in alerts if one["state"] == "firing"}

    def _await(
        self, happened: Callable[[], bool], what: str, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        deadline = time.monotonic() + 150
        while not happened():
            meanwhile()
            said = (self._directory / "log").read_text("utf-8", "replace")
            assert self._process.poll() is None, said
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; alerts: {self._get('alerts')}; {said}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found
