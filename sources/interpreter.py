"""Checks that the interpreter of Spark's workers has this project installed.

``PYSPARK_PYTHON`` names it, and Spark reads that once, when its context starts. Where it is the
system's Python, a source fails in a worker with pages of unrelated errors; this check gives one
line.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from pyspark import SparkContext

from reput.sources.plainspark import is_plain
from reput.store.errors import UsageError

_IMPORT_TIMEOUT_SECONDS = 60.0
KNOWN = {sys.executable}
"""Interpreters that have the sources; a session adds the one that forks its workers."""


def check_workers_interpreter() -> None:
    """Check, on the driver, that the interpreter of Spark's workers can import the sources.

    Nothing is checked without a context (in a worker), nor where the driver has no interpreter of
    that name (a cluster's nodes may), nor in plain mode. Raises UsageError naming the interpreter.
    """
    if is_plain():
        return
    # a session that is not ours may be another pyspark's, and nobody has checked its private parts
    context = getattr(SparkContext, "_active_spark_context", None)
    python = shutil.which(getattr(context, "pythonExec", ""))
    if python is None or python in KNOWN:
        return
    done = subprocess.run(
        [python, "-c", "import reput.sources.commitlog"],
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_IMPORT_TIMEOUT_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise UsageError(
            f"spark's workers run {python}, which cannot import reput's sources; set "
            f"PYSPARK_PYTHON={sys.executable} in the environment before spark starts"
        )
