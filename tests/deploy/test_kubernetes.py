"""The Kubernetes manifests against Kubernetes's own schemas and the operators' models, and their
commands against ours."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError

from tests.deploy.test_service import DOCKERFILE, accepted
from tests.support.cli import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
MODELS = {
    "PodMonitor": "cloudcoil.models.prometheus_operator.v1:PodMonitor",
    "PrometheusRule": "cloudcoil.models.prometheus_operator.v1:PrometheusRule",
    "SparkApplication": "kubeflow_spark_api.models:SparkV1beta2SparkApplication",
}
"""Kinds that operators define, for which Kubernetes has no schemas: as generated from theirs. They
take seconds to import, which every process of a test run would do with this file."""


def _manifests() -> list[dict[str, Any]]:
    paths = sorted(FOLDER.glob("*.yml"))
    return [one for path in paths for one in yaml.safe_load_all(path.read_text("utf-8"))]


def _of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in _manifests() if one["kind"] == kind)
    return found


def _container() -> dict[str, Any]:
    (found,) = _of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    container: dict[str, Any] = found
    return container


def test_kubernetes_accepts_every_manifest_of_its_own() -> None:
    """Strictly: an unknown field is an error."""
    own = [one for one in _manifests() if one["kind"] not in MODELS]
    assert sorted(one["kind"] for one in own) == ["Deployment", "PersistentVolumeClaim"]
    for one in own:
        kubernetes_validate.validate(one, "1.37", strict=True)


def test_the_schema_check_notices_a_misspelt_field() -> None:
    """As it would in the Deployment."""
    wrong = _of_kind("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def _as_modelled(manifest: dict[str, Any]) -> Any:
    """The manifest as its operator reads it: a field that it does not know is gone."""
    model = resolve_name(MODELS[manifest["kind"]]).model_validate(manifest)
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


@pytest.mark.extended
def test_the_operators_accept_every_manifest_of_theirs() -> None:
    """With all its fields."""
    for kind in MODELS:
        assert _as_modelled(_of_kind(kind)) == _of_kind(kind)


def test_the_operators_notice_a_misspelt_field_and_a_wrong_type() -> None:
    """In the parts that they define, and where they take over Kubernetes's."""
    for kind, path, wrong in (
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0), {"intervall": "15s"}),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0), {"form": "2m"}),
        ("SparkApplication", ("spec", "driver"), {"volumeMount": []}),
        ("SparkApplication", ("spec", "driver"), {"cores": "one"}),
    ):
        manifest = _of_kind(kind)
        part = manifest
        for step in path:
            part = part[step]  # type: ignore[index]
        part.update(wrong)
        try:
            assert _as_modelled(manifest) != manifest
        except ValidationError as error:
            assert "cores" in wrong and "driver.cores" in str(error)


def test_one_pod_writes() -> None:
    """One replica, never two at a time, on an output that one pod can mount."""
    spec = _of_kind("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert _of_kind("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]
    names = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
    claim = names["output"]["persistentVolumeClaim"]["claimName"]
    assert claim == _of_kind("PersistentVolumeClaim")["metadata"]["name"]


def test_the_pod_runs_as_the_user_of_the_image() -> None:
    """Java finds a home for no other, and Spark does not start without one."""
    found = re.search(r"^ARG UID=(\d+)$", DOCKERFILE.read_text("utf-8"), re.M)
    assert found is not None
    context = _of_kind("Deployment")["spec"]["template"]["spec"]["securityContext"]
    users = {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")}
    assert users == {int(found[1])}


def test_the_command_is_accepted_and_its_volumes_are_there() -> None:
    """The store cannot be written; the probes ask the port of the metrics."""
    container = _container()
    parsed = accepted(container["args"])
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert mounts == {str(parsed["store"]): True, str(parsed["output"]): False}
    (port,) = container["ports"]
    assert parsed["metrics_port"] == f"0.0.0.0:{port['containerPort']}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": port["name"]}


def test_the_monitor_selects_the_pod_and_names_the_job_of_the_alerts() -> None:
    """The job is the value of the label, which is "reput"."""
    labels = _of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    spec = _of_kind("PodMonitor")["spec"]
    assert spec["selector"]["matchLabels"] == labels
    assert labels[spec["jobLabel"]] == "reput"
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] == _container()["ports"][0]["name"]


def test_the_rule_holds_the_alerts() -> None:
    """All of them, as Prometheus reads them."""
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))
    assert _of_kind("PrometheusRule")["spec"] == alerts


def test_the_spark_application_runs_an_accepted_command() -> None:
    """On volumes that driver and executors both have at the paths that it names."""
    spec = _of_kind("SparkApplication")["spec"]
    parsed = accepted(spec["arguments"])
    assert parsed["once"] is True
    assert Path(spec["mainApplicationFile"]).name == "reput_job.py"
    assert (ROOT / "deploy" / "spark_submit" / "reput_job.py").exists()
    assert spec["driver"]["volumeMounts"] == spec["executor"]["volumeMounts"]
    mounted = {one["mountPath"] for one in spec["driver"]["volumeMounts"]}
    assert mounted == {str(parsed["store"]), str(parsed["output"])}
    names = {one["name"] for one in spec["volumes"]}
    assert names == {one["name"] for one in spec["driver"]["volumeMounts"]}
    lines = (ROOT / "deploy/spark_submit/spark-defaults.conf").read_text("utf-8").splitlines()
    submitted = dict(line.split(None, 1) for line in lines if line.startswith("spark."))
    ours, pythons = spec["sparkConf"], {key for key in submitted if ".python" in key}
    assert len(pythons) == 2
    assert {*ours} >= pythons
    assert {key: submitted[key] for key in ours} == ours
