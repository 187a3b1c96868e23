"""The comparison beside a broker: RocketMQ's own queues, sound and with one byte changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store.queue.batchconsumequeue import BATCH_UNIT_DTYPE
from store.queue.consumequeue import UNIT_DTYPE
from streaming.config import DispatcherConfig
from tests.support.sparkless import running
from upkeep.shadow import Shadow, ShadowResult

Golden = Callable[[str], Path]
UNIT_SIZES = {"consumequeue": UNIT_DTYPE.itemsize, "batchconsumequeue": BATCH_UNIT_DTYPE.itemsize}


def shadowed(store: Path, output: Path) -> ShadowResult:
    """Dispatch the whole log in two batches, compared meanwhile."""
    config = DispatcherConfig(store, output, once=True)
    shadow = Shadow(store, output)
    with shadow:
        settings = config.given_settings()
        with running(
            config, on_watermark=lambda runs: shadow.watermark_moved(settings, runs)
        ) as run:
            if run.position < run.start.log_end:
                run.commit(run.scan(run.start.log_end))
    return shadow.result


def entries(store: Path) -> list[tuple[Path, int, int]]:
    """File, byte and size of every written unit of a store."""
    found = []
    for kind, size in UNIT_SIZES.items():
        for path in sorted((store / kind).glob("*/*/*")):
            data = path.read_bytes()
            for at in range(0, len(data) - size + 1, size):
                if any(data[at : at + size]):
                    found.append((path, at, size))
    return found


@pytest.mark.parametrize("name", ["plain", "mixed", "batch", "orders-5.5.1"])
def test_rocketmqs_own_queues_are_equal(golden: Golden, tmp_path: Path, name: str) -> None:
    """Every written unit of the broker's is compared."""
    store = golden(name)
    found = shadowed(store, tmp_path / "output")
    assert found.differences == []
    assert sum(each.entries for each in found.compared.values()) == len(entries(store)) > 0
    assert sum(each.awaited for each in found.compared.values()) == 0


def test_one_planted_byte_is_found(golden: Golden, tmp_path: Path, seed: int) -> None:
    """Any byte may become any other one; the comparison names file, byte, unit and fields."""
    store, output = golden("plain"), tmp_path / "output"
    rng = random.Random(seed)
    for path, start, size in rng.sample(entries(store), 5):
        sound = path.read_bytes()
        at = start + rng.randrange(size)
        data = bytearray(sound)
        data[at] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        (found,) = shadowed(store, output).differences
        assert (found.file, found.position) == (path.name, at)
        assert found.unit == (int(path.name) + start) // size
        assert (found.topic, str(found.queue_id)) == path.parts[-3:-1]
        assert found.reput and found.broker and found.reput != found.broker
        path.write_bytes(sound)


def test_what_the_broker_has_yet_to_write_is_no_difference(golden: Golden, tmp_path: Path) -> None:
    """The last units are gone, then one in the middle: awaited, then a difference."""
    store, output = golden("plain"), tmp_path / "output"
    path, last, size = entries(store)[-1]
    data = bytearray(path.read_bytes())
    data[last : last + size] = bytes(size)
    path.write_bytes(data)
    found = shadowed(store, output)
    assert found.is_equal
    assert found.compared["consumequeue"].awaited == 1
    data[last - 2 * size : last - size] = bytes(size)
    path.write_bytes(data)
    (missing,) = shadowed(store, output).differences
    assert missing.broker is None and missing.reput is not None
