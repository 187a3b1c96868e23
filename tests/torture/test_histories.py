"""Histories of the dispatcher machine in which its model once asked for what nobody could give."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.streaming import commit
from tests.torture.dispatchermachine import DispatcherMachine
from tests.torture.logmachine import without_waits

Step = tuple[str, dict[str, object]]
CUT_AFTER_A_BEGIN: list[Step] = [
    ("begin", {"start": 0, "seed": 6293}),
    ("append", {"count": 1, "seed": 1}),
    ("append", {"count": 4, "seed": 1153122}),
    ("start", {}),
    ("dispatch", {"share": 100}),
    ("stop", {}),
    ("append", {"count": 7, "seed": 5892}),
    ("retire", {}),
    ("start", {}),
    ("dispatch", {"share": 40}),
    ("cut", {"lost": 4, "is_blank_kept": True}),
    ("append", {"count": 4, "seed": 4195388387}),
]
"""A queue begins anew with a message that the log then loses, and the next message has the queue
offset of the units that were removed."""
TWO_CRASHES_AROUND_A_CUT: list[Step] = [
    ("begin", {"start": 0, "seed": 6293}),
    ("append", {"count": 8, "seed": 533161}),
    ("start", {}),
    ("dispatch", {"share": 9}),
    ("dispatch", {"share": 80}),
    ("crash", {"share": 30, "is_kill": True, "seed": 0}),
    ("cut", {"lost": 7, "is_blank_kept": True}),
    ("crash", {"share": 0, "is_kill": True, "seed": 0}),
]
"""The log is cut before the end that readers were shown, and a second kill comes before a start."""
LAST_RECORD_WAITS: list[Step] = [
    ("begin", {"start": 14336, "seed": 1200}),
    ("roll", {"seed": 2728866410}),
    ("damage", {"name": "flip", "seed": 360}),
    ("retire", {}),
    ("start", {}),
    ("append", {"count": 1, "seed": 77}),
    ("dispatch", {"share": 1}),
    ("cut", {"lost": 1, "is_blank_kept": False}),
]
"""The log is cut right at the watermark, and the CRC of its last record's body is wrong: that one
waits for a successor again, and no other record has a unit."""
KILLED_AFTER_A_LOST_RANGE: list[Step] = [
    ("begin", {"start": 14336, "seed": 745}),
    ("roll", {"seed": 5134}),
    ("start", {}),
    ("roll", {"seed": 1228}),
    ("dispatch", {"share": 1}),
    ("roll", {"seed": 25}),
    ("retire", {}),
    ("roll", {"seed": 1576}),
    ("dispatch", {"share": 34}),
    ("crash", {"share": 48, "is_kill": True, "seed": 303}),
]
"""Retention takes a range, and a kill comes once readers see what follows that range, but before
the watermark has passed it."""

REPEATED_AFTER_RETENTION: list[Step] = [
    ("begin", {"start": 0, "seed": 0}),
    ("start", {}),
    ("roll", {"seed": 0}),
    ("retire", {}),
    ("stop", {}),
    ("start", {}),
    ("append", {"count": 2, "seed": 4}),
    ("dispatch", {"share": 1}),
    ("cut", {"lost": 1, "is_blank_kept": False}),
    ("roll", {"seed": 1418}),
    ("dispatch", {"share": 1}),
    ("dispatch", {"share": 1}),
    ("retire", {}),
]
"""A message is dropped, since an earlier one has its place in the queue; retention takes that one,
and Spark repeats the batch of the message that was dropped."""

RETENTION_BEFORE_A_REPEAT: list[Step] = [
    ("begin", {"start": 0, "seed": 0}),
    ("roll", {"seed": 0}),
    ("retire", {}),
    ("start", {}),
    ("dispatch", {"share": 1}),
    ("stop", {}),
    ("roll", {"seed": 0}),
    ("retire", {}),
    ("start", {}),
    ("dispatch", {"share": 1}),
    ("crash", {"share": 48, "is_kill": True, "seed": 0}),
    ("start", {}),
    ("stop", {}),
    ("start", {}),
    ("stop", {}),
    ("start", {}),
    ("roll", {"seed": 0}),
    ("retire", {}),
]
"""Retention takes what a killed run has shown to readers, while a later run has not come to it."""


@pytest.mark.parametrize(
    "steps",
    [
        CUT_AFTER_A_BEGIN,
        TWO_CRASHES_AROUND_A_CUT,
        LAST_RECORD_WAITS,
        KILLED_AFTER_A_LOST_RANGE,
        REPEATED_AFTER_RETENTION,
        RETENTION_BEFORE_A_REPEAT,
    ],
    ids=["cut", "crashes", "wrong CRC", "lost range", "repeated batch", "retention"],
)
def test_the_model_is_the_output(
    ram_path: Path, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step checks itself, and ``finish`` the whole."""
    monkeypatch.setattr(commit, "STORE_CHECKPOINT_SECONDS", 0.0)

    class Placed(DispatcherMachine):
        """The machine in its directory."""

        directory = ram_path / "case"

    with without_waits():
        machine = Placed()
        try:
            for name, chosen in steps:
                getattr(machine, name)(**chosen)
            machine.finish()
        finally:
            machine.close()
