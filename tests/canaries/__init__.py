"""Seeded faults, each with the tests that must notice it, and what applies them.

Each ``*.toml`` here lists canaries: a file, a text that occurs once in it, the wrong text in its
place, why that breaks a promise, and the tests that fail then. ``make canaries`` applies them one
at a time to a copy of the tree. tests/test_canaries.py checks that the lists fit the tree.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LISTS = Path(__file__).parent
_POWER_CUTS = "crash/test_power_loss.py::test_a_power_cut_changes_nothing[second_run-0.02-60]"
MUTATED: Mapping[str, Sequence[str]] = {
    "store/fsops": ("store/test_fsops.py", "checkpoints/test_swap.py"),
    "store/brokerlock": ("store/test_brokerlock.py",),
    "store/state/built": ("streaming/test_built.py", "upkeep/verify/test_run.py"),
    "store/state/consumeroffset": ("store/state/test_consumeroffset.py",),
    "store/state/coverage": ("store/state/test_coverage.py",),
    "store/state/evidence": ("store/state/test_evidence.py",),
    "store/state/ledger": ("store/state/test_ledger.py",),
    "store/state/logoffset": ("store/state/test_logoffset.py",),
    "store/state/offsetjournal": ("store/state/test_consumeroffset.py",),
    "store/state/output": ("checkpoints/test_watermark.py", "checkpoints/test_reconcile.py"),
    "store/state/storecheckpoint": ("store/state/test_storecheckpoint.py", _POWER_CUTS),
    "store/state/watermark": ("checkpoints/test_watermark.py", _POWER_CUTS),
    "store/queue/batchconsumequeue": (
        "store/queue/test_batchconsumequeue.py", "sinks/test_batchconsumequeue.py",
    ),
    "store/queue/consumequeue": (
        "store/queue/test_consumequeue.py", "store/queue/test_batchconsumequeue.py",
        "store/queue/test_view.py", "sinks/test_consumequeue_rules.py",
    ),
    "store/queue/consumequeueext": (
        "store/queue/test_consumequeueext.py", "sinks/test_consumequeueext.py",
    ),
    "store/queue/mappedfilequeue": (
        "store/queue/test_consumequeue.py", "sinks/test_consumequeue_faults.py",
    ),
    "store/queue/queuetype": ("store/queue/test_queuetype.py", "sources/test_livesettings.py"),
    "store/queue/retention": ("store/queue/test_retention.py", "upkeep/test_expiry.py"),
    "store/queue/unsynced": ("sinks/test_consumequeue_rules.py", _POWER_CUTS),
    "store/queue/view": ("store/queue/test_view.py", "readers/test_messagestore.py"),
    "store/index/indexfile": ("store/index/test_indexfile.py", "sinks/test_index.py"),
    "store/index/mappedindexfile": ("sinks/test_index.py", "store/index/test_indexfile.py"),
    "sinks/index/batchconsumequeue": ("sinks/test_batchconsumequeue.py",),
    "sinks/index/consumequeue": (
        "sinks/test_consumequeue_rules.py", "sinks/test_consumequeue.py",
        "sinks/test_consumequeue_faults.py",
    ),
    "store/runs/batchplacing": ("sinks/test_batchconsumequeue.py",),
    "store/runs/placing": (
        "sinks/test_consumequeue_rules.py", "sinks/test_consumequeue.py",
        "sinks/test_consumequeue_faults.py",
    ),
    "sinks/index/consumequeueext": ("sinks/test_consumequeueext.py",),
    "sinks/delta/table": ("sinks/test_delta.py",),
    "sinks/index/indexfile": ("sinks/test_index.py",),
    "sinks/delta/jsonbody": ("sinks/test_delta.py",),
    "sinks/kafka/records": ("sinks/test_kafkarecords.py",),
    "sinks/kafka/topics": ("sinks/test_kafkatopics.py",),
    "sinks/delta/localtable": ("sinks/test_localtable.py",),
    "sinks/index/queuewriter": (
        "sinks/test_consumequeue_rules.py", "sinks/test_consumequeue_faults.py",
    ),
    "checkpoints/agreement": (
        "checkpoints/test_reconcile.py", "streaming/test_commit.py",
        "streaming/test_cut_log.py::test_messages_alike_are_told_apart_by_their_keys",
        "streaming/test_cut_log.py::test_a_log_that_differs_in_the_middle_is_refused",
        "streaming/test_cut_log.py::test_another_log_is_refused",
        "streaming/test_cut_log.py::test_index_entries_of_messages_before_the_log_tell_nothing",
    ),
    "checkpoints/followers": ("checkpoints/test_followers.py", "streaming/test_followers.py"),
    "checkpoints/ownership": ("checkpoints/test_ownership.py",),
    "checkpoints/reconcile": ("checkpoints/test_reconcile.py",),
    "checkpoints/spark_checkpoint": ("checkpoints/test_spark_checkpoint.py",),
    "checkpoints/swap": ("checkpoints/test_swap.py",),
    "checkpoints/watermark": ("checkpoints/test_watermark.py", _POWER_CUTS),
}  # fmt: skip
"""Modules that need no Spark, broker or compiler -> the tests that must notice random faults."""


@dataclass(frozen=True)
class Canary:
    """One seeded fault."""

    name: str
    why: str
    """The promise that it breaks."""
    file: str
    old: str
    """It occurs once in the file."""
    new: str
    tests: tuple[str, ...]
    """Node ids of pytest; at least one of them fails with the fault."""

    def applied_to(self, text: str) -> str:
        """The text of the file with the fault. Raises ValueError where it does not fit."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Equivalent:
    """A random fault that no test can notice, because the program does the same with it."""

    file: str
    line: str
    """The line that it changes, without its indentation."""
    change: str
    """The line with the fault; ``pass`` where a statement is gone."""
    why: str
    """The reason why nothing that is promised changes."""


def read_canaries() -> list[Canary]:
    """All canaries, in the order of the lists."""
    return [
        Canary(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(LISTS.glob("*.toml"))
        for entry in tomllib.loads(path.read_text("utf-8")).get("canary", ())
    ]


def read_equivalents() -> list[Equivalent]:
    """The faults that ``make mutants`` leaves out of its samples."""
    text = (LISTS / "equivalent.toml").read_text("utf-8")
    return [Equivalent(**entry) for entry in tomllib.loads(text)["equivalent"]]
