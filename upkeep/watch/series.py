"""The series of a run's metrics: name, type, labels and meaning of each (docs/metrics.md).

Base units, counters that end in ``_total``, and labels with few values: never a key or an offset,
and a topic and queue only where a run is asked for series of single queues, which have a limit.
Each series has the label ``store`` besides its own.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "reput_"
GAUGE, COUNTER, SUMMARY, HISTOGRAM = "gauge", "counter", "summary", "histogram"
REASON, FOLLOWER, QUEUE = ("reason",), ("follower",), ("topic", "queue_id")


@dataclass(frozen=True, slots=True)
class Series:
    """One series; ``name`` is without the prefix."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    """Its own labels."""


SERIES = (
    Series("build_info", GAUGE, "1; the label is the version of reput.", ("version",)),
    Series("log_start_bytes", GAUGE, "Physical offset at which the log begins."),
    Series("log_end_bytes", GAUGE, "Sealed end of the log: what may be dispatched ends there."),
    Series("watermark_bytes", GAUGE, "Position before which everything is durable."),
    Series("watermark_timestamp_seconds", GAUGE, "When the watermark was last written."),
    Series("last_message_timestamp_seconds", GAUGE, "Store time of the last durable message."),
    Series("epoch", GAUGE, "Number of the output's ownership; each start raises it."),
    Series("owner", GAUGE, "1 if the output names this process as its owner, otherwise 0."),
    Series("lag_bytes", GAUGE, "Bytes from the dispatched position to the log's end."),
    Series("lag_messages", GAUGE, "Messages in the lag; counted in a lag of up to 32 MiB."),
    Series("lag_seconds", GAUGE, "Now minus the store time of the first undispatched message."),
    Series("start_position_bytes", GAUGE, "Position at which this run began."),
    Series("position_bytes", GAUGE, "Position of this run; in a replay below the watermark."),
    Series("ahead_bytes", GAUGE, "Bytes beyond the position that are scanned, not durable."),
    Series("recovery_ratio", GAUGE, "Part of the log from the start position on that is done."),
    Series("eta_seconds", GAUGE, "Seconds to the log's end at the present rate."),
    Series("batches_total", COUNTER, "Durable batches of this run, or parts of large ones."),
    Series("dispatched_bytes_total", COUNTER, "Bytes of log that this run has dispatched."),
    Series("messages_total", COUNTER, "Messages dispatched by this run, with duplicates."),
    Series("duplicates_total", COUNTER, "Messages of this run whose entries existed before."),
    Series("gaps_total", COUNTER, "Places where queue offsets jumped forward in this run."),
    Series("quarantined_messages_total", COUNTER, "Sound messages of this run without entry."),
    Series("quarantined_bytes_total", COUNTER, "Bytes of log of this run without entry."),
    Series("unusual_topics_total", COUNTER, "Topics with characters that brokers do not allow."),
    Series(
        "stage_seconds", SUMMARY,
        "Time that a stage took. `collect`, `commit` and its parts `write` and `sync` (of each "
        "index), `ledger` and `watermark` are ours; `spark_...` are Spark's durationMs, of a "
        "sample of batches.", ("stage",),
    ),
    Series(
        "append_to_visible_seconds", HISTOGRAM,
        "Of each batch, from the store time of its last message until readers of this machine see "
        "it.",
    ),
    Series(
        "append_to_durable_seconds", HISTOGRAM,
        "Of each batch, from the store time of its last message to its durable watermark.",
    ),
    Series("queries_total", COUNTER, "Spark queries begun: 1, and 1 more after a wait for space."),
    Series("failing", GAUGE, "1 while the run of one of several stores waits to be started again."),
    Series("waiting_for_space", GAUGE, "1 while the run waits for disk space, otherwise 0."),
    Series("space_waits_total", COUNTER, "Waits for disk space that have ended."),
    Series("space_wait_seconds_total", COUNTER, "Time spent in these waits."),
    Series("output_free_bytes", GAUGE, "Space that the output's file system has for this user."),
    Series("checkpoints_replaced", GAUGE, "Checkpoints of Spark that starts moved aside; kept."),
    Series("ledger_ranges", GAUGE, "Ranges in the ledger.", REASON),
    Series("ledger_bytes", GAUGE, "Bytes of log in these ranges.", REASON),
    Series("follower_position_bytes", GAUGE, "End of the log that the target holds.", FOLLOWER),
    Series("follower_lag_bytes", GAUGE, "Bytes from there to the log's end.", FOLLOWER),
    Series("follower_rows_total", COUNTER, "Rows delivered, also by earlier runs.", FOLLOWER),
    Series("follower_lost_bytes_total", COUNTER, "Bytes lost before delivery.", FOLLOWER),
    Series(
        "follower_internal_left_out_total", COUNTER,
        "Internal records that were left out, also by earlier runs.", FOLLOWER,
    ),
    Series(
        "follower_bad_bodies_total", COUNTER,
        "Bodies that did not fit their declaration, also in earlier runs.", FOLLOWER,
    ),
    Series(
        "follower_messages_left_out_total", COUNTER,
        "Messages without a row for that reason, also in earlier runs.", FOLLOWER,
    ),
    Series("follower_failing", GAUGE, "1 if the last attempt failed, otherwise 0.", FOLLOWER),
    Series(
        "follower_failing_since_timestamp_seconds", GAUGE, "Time of the first of these failures.",
        FOLLOWER,
    ),
    Series("follower_truncating", GAUGE, "1 until the target was cut as the log.", FOLLOWER),
    Series(
        "unreadable", GAUGE,
        "1 if this part of the metrics (`log`, `output`, `ledger`, `followers`) could not be read, "
        "otherwise 0.", REASON,
    ),
    Series("look_timestamp_seconds", GAUGE, "When log, output, ledger and followers were read."),
    Series("look_seconds", GAUGE, "Time that this took."),
    Series(
        "queue_messages_total", COUNTER,
        "Messages of this queue, of which `messages_total` is the sum; with `--metrics-queues`.",
        QUEUE,
    ),
    Series(
        "queue_last_message_timestamp_seconds", GAUGE,
        "Store time of this queue's last message; with `--metrics-queues`.", QUEUE,
    ),
    Series(
        "queues_dropped_total", COUNTER,
        "Queues without series of their own, because `--metrics-queues` allows no more.",
    ),
)  # fmt: skip
