"""Damage to Spark's checkpoint, whose position is then where Spark itself would go on.

Spark checks nothing in these files. A start must give up the directory, or leave it such that the
plain reader here, which believes what is there as Spark does, begins at or before the watermark.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.reconcile import make_plan
from reput.checkpoints.spark_checkpoint import pin_start, rewind
from reput.store.files import SPARK_START_FILE
from reput.store.log.logtail import LogTail
from reput.store.state.logoffset import offset_json
from reput.store.state.watermark import Watermark, read_watermark
from tests.support.derived_output import DerivedOutput
from tests.support.file_damage import damage_file
from tests.support.small_store import SmallStore
from tests.torture.cases import Case, Kind
from tests.torture.logrot import random_log


def _write(directory: Path, store_id: str, ends: list[int], committed: int, first: int) -> None:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"7d0e6f44-2a4b-4f2f-8f8e-0d2f0b7a6a11"}')
    metadata = json.dumps({"batchWatermarkMs": 0, "conf": {}})
    for batch, end in enumerate(ends, first):
        text = f"v1\n{metadata}\n{json.dumps(offset_json(store_id, end))}"
        (directory / "offsets" / str(batch)).write_text(text)
        if batch < first + committed:
            (directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def _damage(rng: random.Random, directory: Path) -> str:
    """One file: as any file is damaged, exchanged with another one, or a digit in it changed."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    path = rng.choice(paths)
    match rng.randrange(4):
        case 0:
            other = rng.choice(paths)
            first, second = path.read_bytes(), other.read_bytes()
            path.write_bytes(second)
            other.write_bytes(first)
            return "exchange"
        case 1:
            data = bytearray(path.read_bytes())
            digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
            if digits:
                data[rng.choice(digits)] = ord(str(rng.randrange(10)))
                path.write_bytes(data)
            return "digit"
        case 2:
            path.with_name(str(rng.randrange(20))).write_bytes(path.read_bytes())
            return "copy"
    return damage_file(rng, path)


def _where_spark_goes_on(directory: Path) -> int:
    """As Spark's MicroBatchExecution does: the last planned batch again unless it is committed."""

    def newest(name: str) -> dict[int, Path]:
        return {int(p.name): p for p in (directory / name).iterdir() if p.name.isdigit()}

    offsets, commits = newest("offsets"), newest("commits")
    last = max(offsets)
    if last in commits:
        return _offset(offsets[last])
    if last == 0:
        start: int = json.loads((directory / SPARK_START_FILE).read_text())["offset"]
        return start
    return _offset(offsets[last - 1])


def _offset(path: Path) -> int:
    offset: int = json.loads(path.read_text().splitlines()[2])["offset"]
    return offset


def _plan_ends(rng: random.Random, store: SmallStore, found: Watermark) -> tuple[list[int], int]:
    """Ends of batches up to the watermark, perhaps one beyond it that was planned only."""
    borders = [start for start, _ in store.plain.spans if start < found.end_offset]
    ends = [*sorted(rng.sample(borders, rng.randrange(1, 4))), found.end_offset]
    return ends, len(ends) - rng.randrange(2)


def _run(case: Case) -> str:
    """One case; the damage and what the start decided."""
    rng = case.rng()
    store = SmallStore(case.emptied(), random_log(rng))
    output: DerivedOutput = store.output
    output.start()
    found = read_watermark(output.state)
    assert found is not None
    spark = output.state / "spark"
    ends, committed = _plan_ends(rng, store, found)
    first = rng.choice((0, 0, 5))
    _write(spark, found.store_id, ends, committed, first)
    pin_start(spark, spark, found.store_id, store.plain.start)
    names = {_damage(rng, spark) for _ in range(rng.choice((1, 1, 2)))}
    log = output.settings().open_log()
    try:
        end = LogTail(log).settled()
        plan = make_plan(log, end, found, spark, BuiltOutput(output.root, output.settings()))
    finally:
        log.close()
    if plan.spark is not None:
        rewind(spark, plan.spark)
        goes_on = _where_spark_goes_on(spark)
        assert goes_on == plan.spark.offset
        assert goes_on <= found.end_offset
    output.start()
    store.check()
    return f"{'+'.join(sorted(names))}: {'kept' if plan.spark else 'given up'}"


KIND = Kind("Spark checkpoint damage", _run, 2_000, sample=20)
