"""Spark's part of the metrics: what its listener tells of each batch, and our lag among its own.

Spark's metrics reach whoever collects them from all applications of a cluster, by its
PrometheusServlet and other sinks, without a port of ours.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from reput.streaming.spark.errors import first_line

if TYPE_CHECKING:
    from reput.streaming.measures import Measures

LAG_GAUGE = "reput_lag_bytes"
logger = logging.getLogger("reput")


class BatchListener:
    """Counts Spark's own durations of each batch; Spark calls it in a thread of its own.

    It is Java's side of pyspark's StreamingQueryListener, which asks Java for every field of every
    event: that takes 10 ms of CPU for each batch, and the one field of interest less than 1 ms.
    """

    def __init__(self, measures_of: Callable[[str], Measures | None]) -> None:
        """``measures_of`` returns the measures of the run whose query has a name; None for a query
        that is no run's."""
        self._measures_of = measures_of

    def listen(self, spark: SparkSession) -> None:
        """Hear of every query of a session from now on."""
        jvm: Any = spark.sparkContext._jvm
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        spark.streams._jsqm.addListener(listener)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing; Spark's events are Java's objects."""

    def onQueryProgress(self, event: Any) -> None:
        """Count a batch, once it has ended."""
        progress = json.loads(event.progress().json())
        measures, durations_ms = self._measures_of(progress["name"]), progress["durationMs"]
        if measures is not None and "addBatch" in durations_ms:  # otherwise it only looked for data
            measures.note_spark(durations_ms)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""

    class Java:
        """The interface, by which Py4J knows what Java may call."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class LagGauge:
    """Our lag in bytes among Spark's own metrics: an accumulator of the driver, which Spark shows
    as a gauge (LongAccumulatorSource)."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._shown: int | None = None
        self._accumulator: Any = None
        self._is_possible = True

    def show(self, lag_bytes: int | None) -> None:
        """Set the gauge. An unknown lag leaves it as it is: Spark has it from the first known one
        on, and then always."""
        if lag_bytes is None or lag_bytes == self._shown or not self._is_possible:
            return
        try:
            if self._accumulator is None:
                self._accumulator = self._registered()
            self._accumulator.setValue(lag_bytes)
        except (Py4JError, TypeError) as error:
            # classes that are Spark's own affair, and may differ in another version
            self._is_possible = False
            logger.debug("spark's metrics lack our lag: %s", first_line(error))
        self._shown = lag_bytes

    def _registered(self) -> Any:
        jvm: Any = self._context._jvm
        accumulator = jvm.org.apache.spark.util.LongAccumulator()
        source = getattr(jvm.org.apache.spark.metrics.source, "LongAccumulatorSource$")
        named = jvm.PythonUtils.toScalaMap({LAG_GAUGE: accumulator})
        getattr(source, "MODULE$").register(self._context._jsc.sc(), named)
        return accumulator
