"""``reput produce``: writes a commitlog as a broker does."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Annotated

from reput.cli import options, render, texts
from reput.cli.printer import Result, printed
from reput.store.errors import UsageError
from reput.workload.messages import Workload

if TYPE_CHECKING:
    from reput.workload.appender import Appender

BATCH_SECONDS = 0.005
MAX_BATCH = 10_000
MAX_BATCH_BYTES = 16 << 20
"""Bodies of a batch: more of them at once would be written no faster, out of more memory."""
DEFAULT_RATE = 5000


@printed
def produce(
    store: options.Store,
    topics: Annotated[int, options.value("N", "Number of topics.", min=1, max=999)] = 8,
    queues: Annotated[int, options.value("N", "Number of queues of each topic.", min=1)] = 4,
    rate: Annotated[
        int | None,
        options.value(
            "N",
            f"Messages per second, 0 for no limit; if not given {DEFAULT_RATE}, or 0 with "
            "`--count`.",
            min=0,
        ),
    ] = None,
    size: Annotated[int, options.value("BYTES", "Length of each body.", min=12, max=4 << 20)] = 300,
    seconds: Annotated[float, options.value("N", "How many seconds to append for.", min=0)] = 30.0,
    count: Annotated[
        int | None,
        options.value(
            "N", "Append this many messages, however long it takes.", "--count", "-n", min=1
        ),
    ] = None,
    seed: Annotated[int, options.value("N", "Seed of the random bodies.")] = 1,
    property_crc: Annotated[
        bool, options.flag("Write the property CRC of each message as well.", "--property-crc")
    ] = False,
    commitlog_file_size: options.CommitLogFileSize = None,
) -> Result:
    """Append made-up messages to a store's commitlog, which is created if it is missing.

    Holds the store's lock as a broker does. Ctrl-C or SIGTERM ends it after the running append.
    """
    from reput.store.log.appender import DEFAULT_FILE_SIZE  # noqa: PLC0415
    from reput.workload.appender import Appender  # noqa: PLC0415

    file_size = options.size_option("--commitlog-file-size", commitlog_file_size)
    if store.exists() and not store.is_dir():
        raise UsageError(f"{store} is not a directory")
    if rate is None:
        rate = DEFAULT_RATE if count is None else 0
    how_long = f"for {seconds:g} s" if count is None else f"up to {texts.counted(count, 'message')}"
    at = f"at {rate:,} messages/s" if rate else "without a limit of the rate"
    render.print_note(f"appending to {store} {how_long}, {at}")
    workload = Workload(topics, queues, size, seed)
    file_size = file_size or DEFAULT_FILE_SIZE
    with (
        render.ProgressDisplay("appending") as display,
        render.stopped_by_signals() as stop,
        Appender(store, file_size=file_size, property_crc=property_crc) as appender,
    ):
        first_offset = appender.end_offset
        done, elapsed = _append(appender, workload, rate, seconds, count, stop, display)
        end_offset = appender.end_offset
    summary = {
        "messages": done, "bytes": end_offset - first_offset, "end_offset": end_offset,
        "seconds": round(elapsed, 3),
    }  # fmt: skip
    size_text = texts.human_bytes(end_offset - first_offset)
    line = f"{texts.counted(done, 'message')}, {size_text} in {texts.human_seconds(elapsed)}"
    return Result(summary, [line])


def _append(
    appender: Appender,
    workload: Workload,
    rate: int,
    seconds: float,
    count: int | None,
    stop: Event,
    display: render.ProgressDisplay,
) -> tuple[int, float]:
    """Append until it is time to end; return how many messages, and the seconds they took."""
    # the first append may wait for a kernel to be compiled: the clock starts after it
    appender.append_batch(workload.batch(0, 1, time.time_ns() // 1_000_000))
    most = max(1, min(MAX_BATCH, MAX_BATCH_BYTES // workload.body_size))
    done, began = 1, time.monotonic()
    while not stop.is_set():
        elapsed = time.monotonic() - began
        if done >= count if count is not None else elapsed >= seconds:
            break
        due = int(rate * elapsed) + 1 if rate else done + most
        if count is not None:
            due = min(due, count)
        if due > done:
            batch = min(due - done, most)
            appender.append_batch(workload.batch(done, batch, time.time_ns() // 1_000_000))
            done += batch
        else:
            stop.wait(BATCH_SECONDS)
        now = time.monotonic() - began
        reached, total = (now, seconds) if count is None else (done, count)
        per_second = done / max(now, BATCH_SECONDS)
        fields = {"messages": done, "messages_per_second": round(per_second)}
        display.update(reached, total, f"{done:,} messages, {per_second:,.0f}/s", fields)
    return done, time.monotonic() - began
