"""Workers of pyspark's own daemon, which collects garbage after every task.

Each case has a process of its own, since what it does to the collector lasts. Tasks are called as
pyspark's worker calls them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

READ = """
import gc, sys
from pyspark.sql.pandas.types import from_arrow_schema
from reput.sources.{module} import {source}
from reput.store.rows.rowschema import ROWS_SCHEMA

reader = {source}({{"path": sys.argv[1]}}).reader(from_arrow_schema(ROWS_SCHEMA))
first, *_ = reader.partitions()
rows = reader.read(first)
assert len(next(rows))
loaded = len(gc.get_objects())
{rest_of_task}
print(loaded, len(gc.get_objects()))
"""


@pytest.mark.parametrize("rest_of_task", ["list(rows)", "rows.close()"])
@pytest.mark.parametrize("source", ["CommitLogDataSource", "ConsumeQueueDataSource"])
def test_a_task_leaves_few_objects_to_look_at(
    golden: Callable[[str], Path], source: str, rest_of_task: str
) -> None:
    """Libraries are not looked at after every task, also if Spark wanted few of the first one's
    rows."""
    module = source.removesuffix("DataSource").lower()
    code = READ.format(module=module, source=source, rest_of_task=rest_of_task)
    done = subprocess.run(
        [sys.executable, "-c", code, str(golden("broker"))],
        capture_output=True, check=False, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded, left = map(int, done.stdout.split())
    assert left < loaded / 20
