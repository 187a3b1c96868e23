"""The table of fuzz targets.

A target is a module of this folder with two functions: ``seeds() -> Iterable[bytes]`` gives inputs
to begin with, and ``check(data: bytes) -> None`` takes any bytes and raises if the code is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Protocol, cast

TARGETS: dict[str, tuple[str, ...]] = {
    "frame": ("reput.serving.frame",),
    "record": ("reput.store.log.record", "reput.store.log.java", "reput.store.log.properties"),
    "properties": (
        "reput.store.log.properties",
        "reput.store.log.java",
        "reput.store.log.lightqueues",
    ),
    "sql92": ("reput.filters.sql92", "reput.filters.java"),
    "configjson": ("reput.store.configjson", "reput.store.jsontext", "reput.store.state.built"),
    "watermark": (
        "reput.store.state.watermark",
        "reput.store.state.logoffset",
        "reput.store.state.evidence",
    ),
    "sparkcheckpoint": ("reput.checkpoints.spark_checkpoint", "reput.store.state.logoffset"),
    "index": ("reput.store.index.indexfile",),
    "ext": ("reput.store.queue.consumequeueext",),
    "canary": (),
}
"""Target -> modules whose branches guide the fuzzer, besides the target's own. Kernels cannot:
numba does not compile what was instrumented."""


class Target(Protocol):
    """The functions of a target's module."""

    seeds: Callable[[], Iterable[bytes]]
    check: Callable[[bytes], None]


def load(name: str) -> Target:
    """Import a target."""
    return cast(Target, importlib.import_module(f"tests.fuzz.{name}"))
