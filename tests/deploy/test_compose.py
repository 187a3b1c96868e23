"""The compose file, as far as it can be checked without a container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_service import DOCKERFILE, accepted
from tests.support.cli import ROOT

COMPOSE = ROOT / "deploy" / "compose.yml"
KEYS = {
    "image", "build", "command", "user", "environment", "depends_on", "ports", "volumes", "restart",
    "stop_grace_period",
}  # fmt: skip
"""The keys of the compose specification that this file may use."""


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return found


def _mounts(service: dict[str, Any]) -> list[tuple[str, str]]:
    """(source, target) of every volume."""
    return [(one.split(":")[0], one.split(":")[1]) for one in service.get("volumes", ())]


@pytest.mark.parametrize("name", sorted(_compose()["services"]))
def test_a_service_is_whole(name: str) -> None:
    """Known keys, a pinned image or one built here, mounts and services that exist."""
    compose = _compose()
    service = compose["services"][name]
    assert set(service) <= KEYS
    assert "build" in service or re.fullmatch(r"[a-z]+/[a-z]+:v?\d[\d.]+", service["image"])
    for source, target in _mounts(service):
        assert Path(target).is_absolute()
        if source.startswith("./"):
            assert (COMPOSE.parent / source).exists(), source
        else:
            assert source in compose["volumes"]
    assert set(service.get("depends_on", ())) <= set(compose["services"])
    # nothing is open to other machines
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_every_volume_is_used() -> None:
    """A volume is mounted somewhere."""
    compose = _compose()
    used = {source for one in compose["services"].values() for source, _ in _mounts(one)}
    assert set(compose["volumes"]) <= used


def test_reput_reads_what_the_broker_writes_and_cannot_write_it() -> None:
    """Its command line is accepted; store, output and ports are those that others use."""
    services = _compose()["services"]
    service = services["reput"]
    build = service["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
    parsed = accepted(service["command"])
    assert "home:/store:ro" in service["volumes"]
    assert services["broker"]["environment"]["HOME"] == "/store"
    assert parsed["store"] == Path("/store/store")
    assert ("output", str(parsed["output"])) in _mounts(service)
    port = str(parsed["serve"]).rpartition(":")[2]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    uid = re.search(r"^ARG UID=(\d+)$", DOCKERFILE.read_text("utf-8"), re.M)
    assert uid is not None
    assert services["broker"]["user"] == f"{uid[1]}:{uid[1]}"


def test_prometheus_scrapes_reput_and_has_its_alerts() -> None:
    """The target is reput's metrics port, the job the alerts' own, the rules are mounted."""
    services = _compose()["services"]
    config = yaml.safe_load((COMPOSE.parent / "prometheus/prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    port = str(accepted(services["reput"]["command"])["metrics_port"]).rpartition(":")[2]
    assert job["job_name"] == "reput"
    assert job["static_configs"] == [{"targets": [f"reput:{port}"]}]
    targets = {target for _, target in _mounts(services["prometheus"])}
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} <= targets


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    """Provisioned from where compose mounts the folder of the dashboard."""
    services = _compose()["services"]
    folder = COMPOSE.parent / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((folder / "dashboards/reput.yml").read_text())["providers"]
    targets = dict(_mounts(services["grafana"]))
    assert targets["./grafana"] == provider["options"]["path"]
