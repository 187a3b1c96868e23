"""The table of fuzz targets.

A target is a module of this folder with two functions: ``seeds() -> Iterable[bytes]`` gives inputs
to begin with, and ``check(data: bytes) -> None`` takes any bytes and raises if the code is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Protocol, cast

TARGETS: dict[str, tuple[str, ...]] = {
    "frame": ("serving.frame",),
    "record": ("store.log.record", "store.log.java", "store.log.properties"),
    "properties": ("store.log.properties", "store.log.java", "store.log.lightqueues"),
    "sql92": ("filters.sql92", "filters.java"),
    "configjson": ("store.configjson", "store.jsontext", "store.state.built"),
    "watermark": ("store.state.watermark", "store.state.logoffset", "store.state.evidence"),
    "sparkcheckpoint": ("checkpoints.spark_checkpoint", "store.state.logoffset"),
    "index": ("store.index.indexfile",),
    "ext": ("store.queue.consumequeueext",),
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
