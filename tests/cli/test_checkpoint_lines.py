"""``checkpoints`` as people read it: a batch and a rewind with all of their places and counts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reput.checkpoints.history import Batch
from reput.checkpoints.rewind import Rewind
from reput.cli import checkpoints
from reput.cli.printer import Record
from reput.upkeep.checkpoints import Rewound
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.queue_units import queue_units

MESSAGES, PLANNED = 1234, 1_700_000_000_000


def rewound(offset: int, asked: int, batches: tuple[int, ...], kept: Path | None) -> Rewound:
    """A rewind from the watermark 5,000; whether it was carried out says what was kept."""
    plan: Any = object()
    rewind = Rewind(5000, offset, asked, MESSAGES, 3, 1, 2000, plan)
    return Rewound(rewind, kept is not None, batches, ("delta", "kafka") if batches else (), kept)


def lines(found: Rewound) -> tuple[Record, list[str]]:
    record, *rest = checkpoints._rewind_parts(found)
    assert isinstance(record, Record)
    return record, [str(one) for one in rest]


def test_a_planned_rewind_has_each_count_by_its_name() -> None:
    """The range lies between its new place and the watermark."""
    record, rest = lines(rewound(2952, 2952, (4, 5, 6), None))
    assert record.title == "to rewind"
    assert record.fields == {
        "from watermark": 5000, "to": 2952, "messages": "1,234 in 2.0 KiB",
        "queues cut": "3, 1 unit", "ledger lines": "2,000", "spark's batches": "4 to 6",
        "followers": "delta kafka",
    }  # fmt: skip
    assert rest == ["nothing was changed, give --apply"]


def test_a_rewind_that_was_carried_out_says_what_is_kept(tmp_path: Path) -> None:
    """No broker may start until the next run; a place within a record is said to be moved."""
    record, rest = lines(rewound(2952, 2960, (), tmp_path))
    assert record.title == "rewound"
    assert record.fields["the old is kept"] == str(tmp_path)
    assert (record.fields["spark's batches"], record.fields["followers"]) == ("none", "none")
    assert rest == [
        "2960 is no record's start: taken down to 2952, the start of what contains it",
        "reput run dispatches from there; no broker may start here before",
    ]
    record, _ = lines(rewound(2952, 2952, (4,), tmp_path))
    assert record.fields["spark's batches"] == "4"


def test_a_rewind_to_the_watermark_is_none() -> None:
    """Nothing is to be applied."""
    (line,) = checkpoints._rewind_parts(rewound(5000, 5000, (), None))
    assert line == "nothing to rewind: the watermark is 5000"


@pytest.mark.parametrize(
    ("end", "committed", "state", "durable"),
    [
        (49, True, "durable", True), (50, True, "durable", True),
        (51, True, "beyond the watermark", False), (50, False, "durable, not committed", True),
        (51, False, "beyond the watermark", False),
    ],
)  # fmt: skip
def test_a_batch_is_durable_up_to_the_watermark(
    end: int, committed: bool, state: str, durable: bool
) -> None:
    """Spark's note of it may be missing: the next start would plan it again."""
    batch = Batch(7, 10, end, committed, PLANNED)
    assert checkpoints._batch_row(batch, 50) == (
        7, "10", end, str(end - 10), "2023-11-14T22:13:20.000Z", state
    )  # fmt: skip
    assert checkpoints._batch_fields(batch, 50) == {
        "batch": 7, "from": 10, "to": end, "bytes": end - 10, "planned_ms": PLANNED,
        "committed": committed, "durable": durable,
    }  # fmt: skip


def test_a_batch_whose_begin_is_not_known_has_no_size() -> None:
    """The first one of those that Spark still lists."""
    batch = Batch(7, None, 40, True, None)
    assert checkpoints._batch_row(batch, 50)[1:5] == ("unknown", 40, "unknown", "unknown")
    found = checkpoints._batch_fields(batch, 50)
    assert (found["from"], found["bytes"], found["planned_ms"]) == (None, None, None)


def test_a_dry_run_and_the_rewind_say_the_same(tmp_path: Path, call: Call) -> None:
    """In both forms; the counts are those of the log and of the queues."""
    output = DerivedOutput.unpack("broker", tmp_path)
    output.start()
    store, records = output.store, log_records(output.store)
    at = records[len(records) // 2].physical_offset
    end = records[-1].physical_offset + records[-1].total_size
    place = ("checkpoints", "rewind", store, "--output", output.root, "--to-offset", at)
    cut = [unit for unit in queue_units(output.root) if unit.offset >= at]
    counts = {
        "watermark": end, "offset": at, "asked_offset": at, "units": len(cut),
        "messages": sum(record.physical_offset >= at for record in records),
        "queues": len({(unit.topic, unit.queue_id) for unit in cut}),
    }  # fmt: skip
    dry, text = json_object(call(*place, "--json")), call(*place).stdout
    assert {name: dry[name] for name in counts} == counts
    assert (dry["applied"], dry["kept"]) == (False, None)
    assert re.search(rf"^queues cut +{counts['queues']}, {counts['units']:,} units$", text, re.M)
    done = json_object(call(*place, "--apply", "--json"))
    assert {name: done[name] for name in counts} == counts
    assert done["applied"] is True and Path(done["kept"]).is_dir()
    shown = json.loads(call("checkpoints", "list", store, "--output", output.root, "--json").stdout)
    assert (shown["watermark"], shown["log_end"]) == (at, end)
    (kept,) = [one for one in shown["kept"] if one["path"] == done["kept"]]
    assert (kept["from_offset"], kept["to_offset"]) == (end, at)
