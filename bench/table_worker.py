"""A resident child that reads tables with Spark: ``python -m bench.table_worker [KEY=VALUE ...]``.

It runs a default Spark session with the given settings. Each line on stdin is a request
``{"format": NAME, "options": {...}, "stream": BOOL}``; the answer is one line of JSON. Rows go to
Spark's ``noop`` sink, and are counted on their way; a stream reads everything available, then ends.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import count, lit

from reput.streaming.spark.jvm import find_java

SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def read_table(spark: SparkSession, name: str, options: dict[str, str]) -> int:
    """Return the number of rows of a batch read."""
    observation = Observation()
    frame = spark.read.format(name).options(**options).load()
    counted = frame.observe(observation, count(lit(1)).alias("rows"))
    counted.write.format("noop").mode("overwrite").save()
    return int(observation.get["rows"])


def read_stream(spark: SparkSession, name: str, options: dict[str, str]) -> int:
    """Return the number of rows of a stream, from its beginning to the end as it starts."""
    frame = spark.readStream.format(name).options(**options).load()
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)


def one_pass(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Time a read from the call to its return, planning included."""
    read = read_stream if request["stream"] else read_table
    began = time.monotonic()
    rows = read(spark, request["format"], request["options"])
    return {"rows": rows, "seconds": time.monotonic() - began}


def main() -> None:
    """Answer requests until stdin ends."""
    find_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = SETTINGS | dict(argument.split("=", 1) for argument in sys.argv[1:])
    # only answers may appear on stdout, whatever Spark or its JVM prints
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with SparkSession.builder.config(map=settings).getOrCreate() as spark:
            spark.sparkContext.setLogLevel("ERROR")
            print(json.dumps({"ready": True}), file=answers, flush=True)
            for line in sys.stdin:
                print(json.dumps(one_pass(spark, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
