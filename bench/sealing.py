"""Measures what a seal saves: whole commands that read a log, and that read what is new of it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import logs, measures
from bench.context import Context
from bench.logs import GIB
from bench.measures import Figures, Row
from bench.processes import BenchError, python_command, run_to_exit

ROWS = {"sealed-300": 300, "sealed-1200": 1200}
"""Length of bodies by name of the row."""
SEALED_SHARE = 0.875
"""Share of the log that is there when it is sealed; of 8 GiB, seven files are full then."""
LIMIT_SECONDS = 1800.0


def measure(context: Context) -> Iterator[Row]:
    """Measure ``verify``, and ``rebuild --dry-run``, with ``--sealed`` and without, on an output
    with index; neither log nor output is in the page cache, as after a day of other work."""
    for name, body_size in ROWS.items():
        if name in context.row_names:
            yield _measure(context, name, body_size)


def _measure(context: Context, name: str, body_size: int) -> Row:
    with context.directory(name) as directory:
        store, output = directory / "store", directory / "output"
        size = context.gib * GIB
        with logs.log_writer(store, body_size) as writer:
            writer.grow(int(size * SEALED_SHARE) + (1 << 20))
            _run(store, output, "run", "--once", "--index")
            _run(store, output, "verify", "--sealed")
            log = writer.grow(int(size))
        _run(store, output, "run", "--once")
        seal = output / "reput" / "seal.json"
        data = seal.read_bytes()
        context.say(f"log: {log.title}, seal: {len(data):,} bytes")
        processor: dict[str, list[float]] = {}

        def timed(*words: str) -> Callable[[], float]:
            def command() -> float:
                seal.write_bytes(data)
                logs.evict(log)
                for path in filter(Path.is_file, output.rglob("*")):
                    logs.evict_file(path)
                before = _processor_seconds()
                seconds, is_sealed = _run(store, output, *words)
                if is_sealed != ("--sealed" in words):
                    raise BenchError(f"reput {' '.join(words)} read another part of the log")
                key = f"{' '.join(words)}: CPU"
                processor.setdefault(key, []).append(_processor_seconds() - before)
                return seconds

            return command

        commands = {
            " ".join(words): timed(*words)
            for words in (
                ("verify",), ("verify", "--sealed"),
                ("rebuild", "--dry-run"), ("rebuild", "--dry-run", "--sealed"),
            )
        }  # fmt: skip
        seconds = measures.alternate(context.rounds, commands, context.say)
    times = measures.ratios(seconds["verify"], seconds["verify --sealed"])
    rebuilt = measures.ratios(seconds["rebuild --dry-run"], seconds["rebuild --dry-run --sealed"])
    return Row(
        name=name,
        title=f"what a seal of 7 of 8 log files saves, {body_size} bytes, cold cache",
        goal="no goal",
        result=f"verify {measures.ratio_text(times)}, rebuild {measures.ratio_text(rebuilt)}",
        met=None,
        figures={
            **seconds,
            **{key: Figures("s", tuple(values)) for key, values in processor.items()},
        },
        details={"log": log.title, "seal_bytes": len(data)},
    )


def _run(store: Path, output: Path, command: str, *options: str) -> tuple[float, bool]:
    """Run a command of this tree's ``reput`` to its end; return its seconds, and whether it used a
    seal."""
    words = ("-m", "reput", command, str(store), "--output", str(output), "--json", *options)
    seconds, answer = run_to_exit(python_command(*words), f"reput {command}", LIMIT_SECONDS)
    return seconds, bool(answer.get("seal_end"))


def _processor_seconds() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
