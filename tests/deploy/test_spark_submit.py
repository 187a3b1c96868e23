"""The spark-submit recipe on a real standalone cluster: a master, workers, their executors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.sources.plainspark import PLAIN_VARIABLE
from reput.streaming.spark.jvm import local_settings
from tests.support.golden import difference
from tests.support.standalone import RECIPE, finished, standalone_cluster, submission


def _events(directory: Path) -> list[dict[str, Any]]:
    (path,) = (directory / "events").iterdir()
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.extended
@pytest.mark.parametrize(
    "plain_spark",
    [pytest.param("", id="fast"), pytest.param("1", id="plain", marks=pytest.mark.slow)],
)
def test_submitted_job_builds_the_golden_queues_on_executors(
    golden: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain_spark: str,
) -> None:
    """Byte for byte; every task ran on the worker's executor, none in the driver."""
    monkeypatch.setenv(PLAIN_VARIABLE, plain_spark)
    store, output = golden("mixed"), tmp_path / "output"
    call = ("run", store, "--output", output, "--once", "--json")
    with standalone_cluster(tmp_path, (2,)) as cluster:
        url = cluster.url
        done = finished(submission(tmp_path, url, *call))
        application = cluster.master.wait_for(r"Registered app (\S+) with ID (\S+)")
    assert done.returncode == 0, done.stdout
    summary = json.loads(done.stdout.splitlines()[-1])
    assert difference(output / "consumequeue", store / "consumequeue") == []
    assert summary["messages"] > 0
    assert summary["quarantined_bytes"] == 0
    events = _events(tmp_path)
    (environment,) = (e for e in events if e["Event"] == "SparkListenerEnvironmentUpdate")
    properties = environment["Spark Properties"]
    assert properties["spark.master"] == url
    assert properties["spark.app.id"] == application[2]
    assert properties["spark.app.name"] == application[1] == "reput"
    # what the submitter says stands above the job's own settings
    assert properties["spark.driver.memory"] == "512m"
    # the job's own settings count where the submitter says nothing, and executors know the mode
    assert properties["spark.task.maxDirectResultSize"] == "256m"
    assert properties.get(f"spark.executorEnv.{PLAIN_VARIABLE}", "") == plain_spark
    tasks = [e for e in events if e["Event"] == "SparkListenerTaskEnd"]
    assert tasks
    assert all(e["Task End Reason"]["Reason"] == "Success" for e in tasks)
    executors = {e["Executor ID"] for e in events if e["Event"] == "SparkListenerExecutorAdded"}
    assert {e["Task Info"]["Executor ID"] for e in tasks} <= executors
    assert "driver" not in executors


def test_recipe_contradicts_no_setting_of_the_job() -> None:
    """Where both state a setting, its words are the job's own; nothing is stated twice."""
    lines = (RECIPE / "spark-defaults.conf").read_text("utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    stated = dict(pairs)
    assert len(stated) == len(pairs)
    assert all(key.startswith("spark.") for key in stated)
    ours = local_settings({})
    for key in stated.keys() & ours.keys():
        assert set(stated[key].split()) <= set(ours[key].split()), key
