"""Spark's part of the metrics: what its listener tells of each batch, and our lag among its own.

Spark's metrics reach whoever collects them from all applications of a cluster, by its
PrometheusServlet and other sinks, without a port of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from reput.sources.plainspark import go_plain, is_plain
from reput.streaming.spark.errors import first_line

if TYPE_CHECKING:
    from reput.streaming.measures import Measures

LAG_GAUGE = "reput_lag_bytes"
LISTENER = "PythonStreamingQueryListenerWrapper"
LAG_SOURCE = "LongAccumulatorSource$"
"""Classes of Spark's own."""


class BatchListener:
    """Counts Spark's own durations of each batch; Spark calls it in a thread of its own."""

    def __init__(self, measures_of: Callable[[str], Measures | None]) -> None:
        """``measures_of`` returns the measures of the run whose query has a name; None for a query
        that is no run's."""
        self._measures_of = measures_of

    def listen(self, spark: SparkSession) -> None:
        """Hear of every query of a session from now on."""
        if not is_plain():
            try:
                _listen_in_java(_JavaListener(self._note), spark)
                return
            except (Py4JError, TypeError) as error:
                go_plain(f"spark {spark.version} has another {LISTENER}, {first_line(error)}")
        spark.streams.addListener(_PublicListener(self._note))

    def _note(self, text: str) -> None:
        """Count a batch, once it has ended, by the JSON text of its progress."""
        progress = json.loads(text)
        measures, durations_ms = self._measures_of(progress["name"]), progress["durationMs"]
        if measures is not None and "addBatch" in durations_ms:  # otherwise it only looked for data
            measures.note_spark(durations_ms)


class _PublicListener(StreamingQueryListener):
    """It asks Java for every field of every event: that takes 10 ms of CPU for each batch, and the
    one field of interest less than 1 ms."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Pass on what Spark tells of a batch."""
        self._note(event.progress.json)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""


class _JavaListener(_PublicListener):
    """The same as Java calls it, without pyspark's listener between: its events are Java's."""

    def onQueryProgress(self, event: Any) -> None:
        """Pass on what Spark tells of a batch."""
        self._note(event.progress().json())

    class Java:
        """The interface, by which Py4J knows what Java may call."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _listen_in_java(listener: _JavaListener, spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    java_gateway.ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    wrapper = getattr(jvm.org.apache.spark.sql.streaming, LISTENER)
    spark.streams._jsqm.addListener(wrapper(listener))


class LagGauge:
    """Our lag in bytes among Spark's own metrics: an accumulator of the driver, which Spark shows
    as a gauge (LongAccumulatorSource). There is none in plain mode."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._shown: int | None = None
        self._accumulator: Any = None
        self._is_possible = not is_plain()

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
            self._is_possible = False
            version = self._context.version
            go_plain(f"spark {version} has another {LAG_SOURCE}, {first_line(error)}")
        self._shown = lag_bytes

    def _registered(self) -> Any:
        jvm: Any = self._context._jvm
        accumulator = jvm.org.apache.spark.util.LongAccumulator()
        source = getattr(jvm.org.apache.spark.metrics.source, LAG_SOURCE)
        named = jvm.PythonUtils.toScalaMap({LAG_GAUGE: accumulator})
        getattr(source, "MODULE$").register(self._context._jsc.sc(), named)
        return accumulator
