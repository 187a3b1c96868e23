"""Measures of catching up with a backlog: warm, from a cold page cache, as a whole process, and the
limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import logs, measures, reput, rocketmq
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Figures, Row

WARM_GOALS = {300: 10.0, 1200: 10.0}
"""Multiples of RocketMQ's rate, by body size."""
LIMIT_GOALS = {300: (0.65, 0.65), 1200: (0.70, 0.75)}
"""Shares, by body size: of the kernels alone, and of theirs of what no parser can leave out."""
KERNELS, HOPS = "kernels alone", "pread, hops and three fields"
CONCURRENT = "RocketMQ, concurrent"
"""RocketMQ with ``enableBuildConsumeQueueConcurrently``."""
CONCURRENT_SIZE = 1200
"""The body size at which that is measured: its time goes by messages, and here are fewest."""
COLD_CACHE_GOAL = 0.90
WHOLE_GOAL = 4.0
ALL_DISPATCHERS_GOAL = 5.0
ALL_DISPATCHERS_SHARE = 0.5
"""Share of the log: RocketMQ takes minutes for the whole."""


def measure(context: Context, body_size: int) -> Iterator[Row]:
    """Yield the wanted rows of one log."""
    names = {
        name: f"{name}-{body_size}"
        for name in ("catch-up", "parse-limit", "cold-cache", "whole-process")
    }
    if not context.row_names & set(names.values()):
        return
    with context.directory(f"catch-up-{body_size}") as directory:
        with logs.log_writer(directory / "store", body_size) as writer:
            log = writer.grow(int(context.gib * GIB))
        context.say(f"log: {log.title}")
        if context.row_names & {names["catch-up"], names["parse-limit"]}:
            yield from _warm(context, directory, log, names)
        if names["cold-cache"] in context.row_names:
            yield _cold_cache(context, directory, log, names["cold-cache"])
        if names["whole-process"] in context.row_names:
            yield _whole_process(context, directory, log, names["whole-process"])


def _warm(context: Context, directory: Path, log: Log, names: dict[str, str]) -> Iterator[Row]:
    """Measure with the session up and the page cache warm: this project, RocketMQ and the kernels
    take turns."""
    details: dict[str, Any] = {"reput": []}
    flushed: list[float] = []
    concurrent: list[int] = []
    logs.warm(log)
    with ExitStack() as resources:
        session = resources.enter_context(reput.open_session(directory))
        kernels = resources.enter_context(reput.open_kernels(log))

        def ours() -> float:
            answer = session.catch_up(log)
            details["reput"].append(answer)
            return float(answer["seconds"])

        # the first pass in a session starts workers and compiles plans
        details["first_pass"] = session.catch_up(log)
        systems: dict[str, Callable[[], float]] = {
            "reput": ours, KERNELS: kernels.scan, HOPS: kernels.hop
        }  # fmt: skip
        if names["catch-up"] in context.row_names:
            peers = _rocketmqs(resources, directory, log, flushed, concurrent)
            systems = {**peers, **systems}
        seconds = measures.alternate(context.rounds, systems, context.say)
    rates = {name: _rate(log, values) for name, values in seconds.items()}
    details["seconds"] = {name: list(values.values) for name, values in seconds.items()}
    if names["catch-up"] in context.row_names:
        rates["RocketMQ, flushed"] = _rate(log, Figures("s", tuple(flushed)))
        details["concurrent_entries"] = concurrent
        yield _against_rocketmq(context, log, names["catch-up"], rates, details)
    if names["parse-limit"] in context.row_names:
        yield _share_of_limit(context, log, names["parse-limit"], rates, details)


def _rocketmqs(
    resources: ExitStack, directory: Path, log: Log, flushed: list[float], concurrent: list[int]
) -> dict[str, Callable[[], float]]:
    """Start RocketMQ as it is by default and, at CONCURRENT_SIZE, once more with its concurrent
    build of queues, which adds the number of its entries to ``concurrent``."""
    default = resources.enter_context(rocketmq.warm(log, directory / "rocketmq"))

    def one_thread() -> float:
        os.sync()
        rebuild = default.rebuild()
        flushed.append(rebuild.flushed_seconds)
        return rebuild.dispatch_seconds

    if log.body_size != CONCURRENT_SIZE:
        return {"RocketMQ": one_thread}
    settings = [rocketmq.CONCURRENT]
    parallel = resources.enter_context(rocketmq.warm(log, directory / "concurrent", settings))

    def concurrently() -> float:
        os.sync()
        rebuild = parallel.rebuild_concurrently()
        concurrent.append(rebuild.entries)
        # as if it had gone on at its rate, where it is incomplete
        return rebuild.dispatch_seconds * log.message_count / max(1, rebuild.entries)

    return {"RocketMQ": one_thread, CONCURRENT: concurrently}


def _against_rocketmq(
    context: Context, log: Log, name: str, rates: dict[str, Figures], details: dict[str, Any]
) -> Row:
    goal = WARM_GOALS[log.body_size]
    systems = ("reput", "RocketMQ", "RocketMQ, flushed", CONCURRENT)
    times = measures.ratios(rates["reput"], rates["RocketMQ"])
    row = Row(
        name=name,
        title=f"catch-up, {log.body_size} bytes, session up, page cache warm",
        goal=f">= {goal:g}x RocketMQ",
        result=measures.ratio_text(times),
        met=context.judged(times.median >= goal),
        figures={key: rates[key] for key in systems if key in rates},
        details={"log": log.title, **details},
        notes=["result: RocketMQ's dispatch alone against reput's durable watermark"],
    )
    if entries := details["concurrent_entries"]:
        row.notes.append(
            f"RocketMQ's concurrent build made {min(entries):,} of {log.message_count:,} entries; "
            "its time ends with the last one"
        )
    return row


def _share_of_limit(
    context: Context, log: Log, name: str, rates: dict[str, Figures], details: dict[str, Any]
) -> Row:
    share = measures.ratios(rates["reput"], rates[KERNELS])
    kernels = measures.ratios(rates[KERNELS], rates[HOPS])
    goal, kernels_goal = LIMIT_GOALS[log.body_size]
    return Row(
        name=name,
        title=f"share of the limits, {log.body_size} bytes",
        goal=(
            f">= {goal:.0%} of the kernels alone on {reput.core_count()} cores; these >= "
            f"{kernels_goal:.0%} of reading, hops and three fields"
        ),
        result=f"{measures.share_text(share)}; {measures.share_text(kernels)}",
        met=context.judged(share.median >= goal and kernels.median >= kernels_goal),
        figures={key: rates[key] for key in ("reput", KERNELS, HOPS)},
        details={"log": log.title, **details},
    )


def _cold_cache(context: Context, directory: Path, log: Log, name: str) -> Row:
    """Measure with the session up and nothing of the log in the page cache. No JVM of RocketMQ may
    map the files."""
    first_batches: list[float] = []
    with reput.open_session(directory) as session:

        def ours() -> float:
            logs.evict(log)
            answer = session.catch_up(log)
            first_batches.append(answer["first_batch_seconds"])
            return float(answer["seconds"])

        def disk() -> float:
            logs.evict(log)
            return logs.dd_seconds(log)

        # each runs once beforehand, so that caches below the page cache favour neither
        disk()
        session.catch_up(log)
        systems: dict[str, Callable[[], float]] = {"reput": ours, "dd": disk}
        seconds = measures.alternate(context.rounds, systems, context.say)
    rates = {key: values.as_rate(log.end_offset / 1e9, "GB/s") for key, values in seconds.items()}
    share = measures.ratios(rates["reput"], rates["dd"])
    return Row(
        name=name,
        title=f"catch-up, {log.body_size} bytes, session up, page cache cold",
        goal=f">= {COLD_CACHE_GOAL:.0%} of dd's rate on the same files",
        result=measures.share_text(share),
        met=context.judged(share.median >= COLD_CACHE_GOAL),
        figures=rates,
        details={"log": log.title, "first_batch_seconds": first_batches},
    )


def _whole_process(context: Context, directory: Path, log: Log, name: str) -> Row:
    """Measure from exec to exit, with a warm page cache and neither system running before."""

    def ours() -> float:
        return reput.whole_process(log, directory / "whole")

    def theirs() -> float:
        os.sync()
        return rocketmq.cold(log, directory / "rocketmq")

    rocketmq.build()
    logs.warm(log)
    systems: dict[str, Callable[[], float]] = {"RocketMQ": theirs, "reput": ours}
    seconds = measures.alternate(context.rounds, systems, context.say)
    # the values are seconds, so RocketMQ's are divided by ours
    times = measures.ratios(seconds["RocketMQ"], seconds["reput"])
    return Row(
        name=name,
        title=f"whole process, {log.body_size} bytes, exec to exit, page cache warm",
        goal=f">= {WHOLE_GOAL:g}x a JVM that loads the same store",
        result=measures.ratio_text(times),
        met=context.judged(times.median >= WHOLE_GOAL),
        figures=seconds,
        details={"log": log.title},
        notes=["RocketMQ: nothing flushed, no orderly shutdown; reput: durable"],
    )


def _rate(log: Log, seconds: Figures) -> Figures:
    return seconds.as_rate(log.message_count / 1e6, measures.RATE_UNIT)


def measure_all_dispatchers(context: Context) -> Iterator[Row]:
    """Measure consume queues and the index of two keys per message, both systems' default."""
    name = "all-dispatchers-300"
    with context.directory(name) as directory:
        with logs.log_writer(directory / "store", 300) as writer:
            log = writer.grow(int(context.gib * ALL_DISPATCHERS_SHARE * GIB))
        context.say(f"log: {log.title}")
        logs.warm(log)
        settings = ["messageIndexEnable=true"]
        with (
            reput.open_session(directory) as session,
            rocketmq.warm(log, directory / "rocketmq", settings) as resident,
        ):

            def ours() -> float:
                return float(session.catch_up(log, index=True)["seconds"])

            def theirs() -> float:
                os.sync()
                seconds = resident.rebuild().dispatch_seconds
                logs.check_index(resident.view, log)
                return seconds

            def alone() -> float:
                return float(session.catch_up(log)["seconds"])

            ours()
            systems = {"RocketMQ": theirs, "reput": ours, "reput, consume queues alone": alone}
            seconds = measures.alternate(context.rounds, systems, context.say)
    rates = {key: _rate(log, values) for key, values in seconds.items()}
    times = measures.ratios(rates["reput"], rates["RocketMQ"])
    yield Row(
        name=name,
        title="catch-up with the index, 300 bytes, session up, page cache warm",
        goal=f">= {ALL_DISPATCHERS_GOAL:g}x RocketMQ",
        result=measures.ratio_text(times),
        met=context.judged(times.median >= ALL_DISPATCHERS_GOAL),
        figures=rates,
        details={"log": log.title},
    )
