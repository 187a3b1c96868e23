"""Configuration of one dispatcher run, given once by the command line or a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.store.config import StoreSettings, read_store_settings
from reput.store.datadirectories import check_target
from reput.store.errors import UsageError
from reput.store.files import ABORT_FILE, SPARK_DIRECTORY, SPOOL_DIRECTORY, STATE_DIRECTORY
from reput.store.flags import DAMAGE_PANEL, STORE_PANEL, flagged
from reput.store.follower import FollowerTarget
from reput.store.log.commitlog import CommitLog
from reput.store.queue.queuetype import read_queue_types

DEFAULT_LATENCY_MS = 10
DEFAULT_DURABLE_LATENCY_MS = 1000
DEFAULT_MAX_BYTES_PER_TRIGGER = 16 << 30
"""A batch is committed in parts, so that it may be large: what it costs Spark is paid once. A start
after a kill scans up to this much again."""
MAX_BYTES_THROUGH_SPARK = 2304 << 20
"""The limit of batches whose units pass through Spark's memory: two files of the log and the part
of the newest one that is filled."""
FOLLOWING = ("run", "shadow")
"""The commands that follow a log."""


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """Configuration of one run of the dispatcher."""

    store: Path
    """Root of the store whose log is read."""
    output: Path
    """Root of the store that is written: ``store`` itself, or another directory."""
    max_bytes_per_trigger: int = flagged(
        DEFAULT_MAX_BYTES_PER_TRIGGER, "--max-bytes-per-trigger",
        "Read up to this much of the log per micro-batch: `64k`, `1g`; several stores share it.",
        metavar="SIZE", shown=f"{DEFAULT_MAX_BYTES_PER_TRIGGER >> 30}g", commands=FOLLOWING,
    )  # fmt: skip
    once: bool = flagged(False, "--once", "Catch up with the log, then end.", commands=FOLLOWING)
    """Catch up with the log as it is now, then end."""
    checkpoint: Path | None = flagged(
        None, "--checkpoint", "Directory of Spark's checkpoint; `OUTPUT/reput/spark` if not given.",
        metavar="DIR", commands=FOLLOWING,
    )  # fmt: skip
    """Spark's checkpoint directory; None for ``output/reput/spark``."""
    latency_ms: int = flagged(
        DEFAULT_LATENCY_MS, "--latency",
        "Time between two steps at the end of the log: `10ms`, `1s`. Readers of this machine see "
        "an entry about half of it after its append; fewer steps save CPU.",
        metavar="TIME", shown=f"{DEFAULT_LATENCY_MS}ms", commands=FOLLOWING,
    )  # fmt: skip
    """The time between two steps at the end of the log, while messages come."""
    durable_latency_ms: int = flagged(
        DEFAULT_DURABLE_LATENCY_MS, "--durable-latency",
        "Make entries durable so often, and tell tables and Kafka of them; readers of this machine "
        "see them before. `0ms` syncs each step, which then takes as long as the disk needs.",
        metavar="TIME", shown=f"{DEFAULT_DURABLE_LATENCY_MS // 1000}s", commands=FOLLOWING,
    )  # fmt: skip
    """The time between two syncs of what was dispatched, 0 for one after each batch."""
    fail_on_corrupt: bool = flagged(
        False, "--on-corrupt",
        "At damaged bytes, list them and go on (`quarantine`) or stop (`fail`).", DAMAGE_PANEL,
        metavar="HOW", shown="quarantine", words={"quarantine": False, "fail": True},
        commands=("run",),
    )  # fmt: skip
    """Stop at damaged bytes; otherwise they are quarantined."""
    adopt: bool = flagged(
        False, "--adopt", "Continue queues that another writer built.", commands=("run",)
    )
    """Continue queues that another writer built."""
    replay_from: str | None = flagged(
        None, "--replay-from", "Dispatch again from `earliest` or a physical offset.",
        metavar="OFFSET", commands=("run",),
    )  # fmt: skip
    """``earliest`` or a physical offset from which to dispatch again."""
    retention: bool = flagged(
        False, "--retention", "Remove queue files whose messages the log has lost.",
        commands=FOLLOWING,
    )  # fmt: skip
    """Remove queue files whose messages the log has lost, as a broker does."""
    broker_conf: Path | None = flagged(
        None, "--broker-conf", "RocketMQ's property file; `broker.conf` in the store if not given.",
        STORE_PANEL, "FILE",
    )  # fmt: skip
    """RocketMQ's property file; None for ``store/broker.conf``, if it exists."""
    mapped_file_size_commit_log: int | None = flagged(
        None, "--commitlog-file-size", "mappedFileSizeCommitLog, such as `1g`.", STORE_PANEL, "SIZE"
    )
    """Size in bytes; it overrides the property file."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Field of StoreSettings -> value that overrules the output's and the property file's
    (``store.state.built.settings_of``); a field that is None or missing stays."""
    store_id: str | None = None
    """Identity of an output that this run creates, 32 hex digits; None for a new one."""
    followers: tuple[FollowerTarget, ...] = ()
    """Tables and other systems that receive the messages, each at its own pace."""
    spark_conf: dict[str, str] = flagged(
        dict, "--conf", "A Spark setting; may be repeated.", STORE_PANEL, "KEY=VALUE"
    )
    """Further Spark settings; they override ours."""

    def given_settings(self) -> StoreSettings:
        """Return the settings of the store, without those of the output in ``flags``. Raises
        UsageError."""
        settings = read_store_settings(self.store, self.broker_conf)
        return settings.with_commit_log_file_size(self.mapped_file_size_commit_log)

    @property
    def state_directory(self) -> Path:
        """The directory of positions and the ledger."""
        return self.output / STATE_DIRECTORY

    @property
    def abort_file(self) -> Path:
        """The file that exists while a run goes on, and that remains after a run that was cut
        short."""
        return self.state_directory / ABORT_FILE

    @property
    def spool_directory(self) -> Path:
        """The directory in which tasks on this machine leave their units."""
        return self.state_directory / SPOOL_DIRECTORY

    def open_store(self) -> tuple[StoreSettings, CommitLog]:
        """Return the settings of the store, as ``given_settings`` does, and its log.

        This is what a start checks first: it is cheap and changes nothing. Raises ReputError where
        the store cannot be read, and UsageError where a run would write among the data of a store.
        """
        if self.store_id is not None and not re.fullmatch("[0-9a-f]{32}", self.store_id):
            raise UsageError(f"store_id is {self.store_id!r}; it must be 32 hex digits")
        settings = self.given_settings()
        read_queue_types(settings.root)
        followed = [target.local_path for target in self.followers]
        for path in (self.output, self.checkpoint, *followed):
            if path is not None:
                check_target(path, settings, self.output)
        return settings, settings.open_log()

    @property
    def spark_directory(self) -> Path:
        """The directory of Spark's checkpoint."""
        return self.checkpoint or self.state_directory / SPARK_DIRECTORY
