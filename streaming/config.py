"""What a dispatcher run is told, once, by the command line or a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoints import ABORT_FILE, SPARK_DIRECTORY, SPOOL_DIRECTORY, STATE_DIRECTORY
from store.config import OnQueueGap, StoreSettings, read_store_settings
from store.datadirectories import check_target
from store.follower import FollowerTarget

DEFAULT_TRIGGER_MS = 0
DEFAULT_MAX_BYTES_PER_TRIGGER = 2304 << 20
"""Two files of the log and what the newest one holds: a little more is no batch of its own."""


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """One run of the dispatcher."""

    store: Path
    """Root of the store whose log is read."""
    output: Path
    """Root of the store that is written: ``store`` itself, or another directory."""
    once: bool = False
    """Catch up with what is there, then end."""
    checkpoint: Path | None = None
    """Spark's checkpoint directory; None for ``output/reput/spark``."""
    trigger_ms: int = DEFAULT_TRIGGER_MS
    max_bytes_per_trigger: int = DEFAULT_MAX_BYTES_PER_TRIGGER
    fail_on_corrupt: bool = False
    """Stop at damaged bytes; otherwise they are quarantined."""
    on_queue_gap: OnQueueGap | None = None
    """This and the other settings of ``flags``: None for as the output was built."""
    verify_crc: bool | None = None
    """Check the CRC of every body."""
    adopt: bool = False
    """Continue queues that another writer built."""
    replay_from: str | None = None
    """``earliest`` or a physical offset to dispatch again from."""
    index: bool | None = None
    """Build the index of keys; where neither this nor the output says, messageIndexEnable and
    indexFileWriteEnable do."""
    index_tags: bool | None = None
    """Index tags too, as RocketMQ 5.5 does and 5.3 does not."""
    retention: bool = False
    """Remove queue files whose messages the log has lost, as a broker does."""
    broker_conf: Path | None = None
    """RocketMQ's property file; None for ``store/broker.conf``, if there."""
    commit_log_file_size: int | None = None
    """Bytes; stands above the property file."""
    consume_queue_file_size: int | None = None
    """Bytes; stands above the property file."""
    store_id: str | None = None
    """Identity of an output that is made by this run, 32 hex digits; None for a new one."""
    followers: tuple[FollowerTarget, ...] = ()
    """Tables and other systems that get the messages, each at its own pace."""
    spark_conf: dict[str, str] = field(default_factory=dict)
    """Further Spark settings; they stand above ours."""

    @property
    def flags(self) -> dict[str, Any]:
        """Field of StoreSettings -> value, for ``store.state.built.settings_of``."""
        return {
            "mapped_file_size_consume_queue": self.consume_queue_file_size,
            "on_queue_gap": self.on_queue_gap,
            "verify_crc": self.verify_crc,
            "message_index_enable": self.index,
            "index_file_write_enable": self.index or None,
            "index_tags": self.index_tags,
        }

    def given_settings(self) -> StoreSettings:
        """Those of the store, without what ``flags`` say of the output. Raises UsageError."""
        settings = read_store_settings(self.store, self.broker_conf)
        return settings.with_commit_log_file_size(self.commit_log_file_size)

    @property
    def state_directory(self) -> Path:
        """Where positions and the ledger live."""
        return self.output / STATE_DIRECTORY

    @property
    def abort_file(self) -> Path:
        """There while a run goes on, and behind one that was cut short."""
        return self.state_directory / ABORT_FILE

    @property
    def spool_directory(self) -> Path:
        """Where tasks on this machine leave their units."""
        return self.state_directory / SPOOL_DIRECTORY

    def check_targets(self, settings: StoreSettings) -> None:
        """Raises UsageError where anything would be written among the data of a store."""
        followed = [target.local_path for target in self.followers]
        for path in (self.output, self.checkpoint, *followed):
            if path is not None:
                check_target(path, settings, self.output)

    @property
    def spark_directory(self) -> Path:
        """Spark's checkpoint."""
        return self.checkpoint or self.state_directory / SPARK_DIRECTORY
