"""The example of a Spark Declarative Pipeline, run by Spark's own command as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.cli import ROOT, reput_json

EXAMPLE = ROOT / "docs" / "examples" / "pipeline"
CATALOG = "spark.sql.catalogImplementation=hive"
PLACES = {"/tmp/mystore": "store", "/tmp/queues": "output", "/tmp/reput-pipeline": "storage"}
"""The places that a user of the example sets, and where they are here."""


def _run(pipeline: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "--conf", CATALOG, "run"],
        cwd=pipeline, env=environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED" in done.stdout + done.stderr


def _rows(pipeline: Path, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(pipeline / "spark-warehouse" / table).to_pylist()
    return rows


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_each_run_adds_what_has_come(tmp_path: Path) -> None:
    """Both sources give each message once; the view counts what both have."""
    pipeline = tmp_path / "pipeline"
    shutil.copytree(EXAMPLE, pipeline)
    spec = pipeline / "spark-pipeline.yml"
    text = spec.read_text("utf-8")
    assert f"spark-pipelines --conf {CATALOG} run" in text
    for example, name in PLACES.items():
        assert text.count(example) == 1
        text = text.replace(example, str(tmp_path / name))
    spec.write_text(text, "utf-8")
    store, output = tmp_path / "store", tmp_path / "output"
    for before, total in ((0, 600), (600, 1000)):
        shape = ("--topics", 2, "--queues", 2, "--commitlog-file-size", "1m")
        reput_json("produce", store, "--count", total - before, *shape)
        reput_json("run", store, "--output", output, "--once")
        _run(pipeline)
        for table in ("logged", "dispatched"):
            rows = _rows(pipeline, table)
            places = {(row["topic"], row["queueId"], row["queueOffset"]) for row in rows}
            assert (len(rows), len(places)) == (total, total)
        assert sorted(_rows(pipeline, "per_topic"), key=itemgetter("topic")) == [
            {"topic": topic, "logged": total // 2, "dispatched": total // 2}
            for topic in ("Topic_000", "Topic_001")
        ]
