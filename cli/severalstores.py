"""Several stores in one command: their options, and a run that dispatches all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli import options, render, texts
from reput.cli.printer import Result, Table
from reput.store.errors import StoreError, UsageError
from reput.store.stores import find_stores
from reput.streaming.config import DispatcherConfig
from reput.streaming.spark.jvm import started

if TYPE_CHECKING:
    from reput.streaming.measures import Measures
    from reput.streaming.supervisor import Supervisor

SEVERAL = "Several stores"
StoreRow = tuple[Path, Path, str | None, Mapping[str, Any], Sequence[str]]
"""Root and output of a store, its error, further fields of JSON, and its cells of a table."""

OneStore = Annotated[
    Path | None,
    typer.Argument(
        help="The store's root directory, which holds `commitlog/`.",
        metavar="STORE",
        show_default=False,
    ),
]
Stores = Annotated[
    str | None,
    options.value(
        "GLOB",
        "Every store whose root directory matches, instead of STORE: `'/data/broker-*'`.",
        "--stores",
        panel=SEVERAL,
    ),
]
Outputs = Annotated[
    Path | None,
    options.value(
        "DIR",
        "The directory that holds an output for each store, by the name of the store's directory.",
        "--outputs",
        panel=SEVERAL,
    ),
]


@dataclass(frozen=True, slots=True)
class SeveralStores:
    """The stores that a command is about, where they are several."""

    pattern: str
    outputs: Path

    def find(self) -> dict[Path, Path]:
        """Return root -> output of each store that is there. Raises UsageError."""
        return find_stores(self.pattern, self.outputs)

    def refuse(self, given: Mapping[str, object]) -> None:
        """Raise UsageError for an option, of these by the names of their parameters, that is for
        one store."""
        for name, value in given.items():
            if value is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} is for one store; leave it out with --stores")


def several_stores(
    store: Path | None, stores: str | None, outputs: Path | None
) -> SeveralStores | None:
    """Return the stores that the options name; None for the one store of STORE. Raises
    UsageError."""
    if (store is None) == (stores is None):
        raise UsageError("give either STORE or --stores GLOB")
    if (stores is None) != (outputs is None):
        raise UsageError("--stores GLOB and --outputs DIR need each other")
    return None if stores is None or outputs is None else SeveralStores(stores, outputs)


def supervisor(
    several: SeveralStores,
    configured: Callable[[Path, Path, int], DispatcherConfig],
    new_measures: Callable[[], Measures] | None,
    *,
    once: bool,
) -> Supervisor:
    """Return what runs all stores; ``configured`` gives the configuration of a root and its output,
    which is one of so many, ``new_measures`` what a store's metrics are made of, if any are served.
    Raises UsageError."""

    def find() -> dict[str, DispatcherConfig]:
        outputs = several.find()
        return {out.name: configured(root, out, len(outputs)) for root, out in outputs.items()}

    # a mistake is answered before Spark is loaded
    find() if once else render.when_ready(find)
    from reput.streaming.supervisor import Supervisor  # noqa: PLC0415

    return Supervisor(find, new_measures, once=once)


def dispatch_all(
    supervised: Supervisor,
    spark_conf: dict[str, str],
    metrics: AbstractContextManager[None] | None = None,
) -> None:
    """Run all stores until they are stopped or have caught up, showing their progress."""
    with (
        render.ProgressDisplay() as display,
        render.stopped_by_signals() as stop,
        metrics or nullcontext(),
        started(spark_conf) as jvm,
    ):
        from reput.streaming.spark.session import session  # noqa: PLC0415

        with session(spark_conf, jvm) as spark:
            supervised.run(spark, stop, display)


def results(supervised: Supervisor) -> Iterator[Result]:
    """Yield the summary of all stores. Raises StoreError where one of them has failed."""
    summaries: list[dict[str, Any]] = [store.summary() for store in supervised.stores]
    columns = ("store", "messages", "there already", "gaps", "quarantined", "watermark")
    rows = [
        (
            summary["store"],
            *(texts.grouped(summary[name]) for name in ("messages", "duplicates", "gaps")),
            texts.counted(summary["quarantined_bytes"], "byte"), texts.known(summary["end_offset"]),
        )
        for summary in summaries
    ]  # fmt: skip
    yield Result({"stores": summaries}, [Table("stores", columns, rows)], has_settings=True)
    raise_failures({summary["store"]: summary["error"] for summary in summaries})


def result(columns: Sequence[str], stores: Iterable[StoreRow], exit_code: int = 0) -> Result:
    """Return a row for each store."""
    fields, rows = [], []
    for root, output, error, content, cells in stores:
        fields.append({"store": str(root), "output": str(output), "error": error, **content})
        rows.append((root.name, *cells))
    table = Table("stores", columns, rows, folds=True)
    return Result({"stores": fields}, [table], exit_code, has_settings=True)


def raise_failures(errors: Mapping[object, str | None]) -> None:
    """Raise StoreError where some of these stores have failed, with all reasons."""
    failed = {store: error for store, error in errors.items() if error is not None}
    if failed:
        reasons = "; ".join(f"{store}: {error}" for store, error in failed.items())
        raise StoreError(f"{len(failed)} of {len(errors)} stores failed: {reasons}")
