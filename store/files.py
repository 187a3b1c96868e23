"""The names of all files and directories that a store or an output consists of, and their suffixes.

Paths with a directory in front are relative to the root of a store. What is in a file, the module
says that reads and writes it.
"""

import re

# a store, as RocketMQ lays it out
BROKER_CONF_FILE = "broker.conf"
"""The broker's settings, which it reads at its start."""
COMMIT_LOG_DIRECTORY = "commitlog"
"""The log: every message of the broker, in the order of arrival."""
OVERLAY_DIRECTORY = "overlay"
CONSUME_QUEUE_DIRECTORY = "consumequeue"
"""The consume queues, by topic and queue id."""
CONSUME_QUEUE_EXT_DIRECTORY = "consumequeue_ext"
"""The ext units of consume queues, by topic and queue id."""
BATCH_CONSUME_QUEUE_DIRECTORY = "batchconsumequeue"
"""The batch consume queues, by topic and queue id."""
QUEUE_DIRECTORIES = (
    CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY,
)  # fmt: skip
"""All that queues consist of."""
ROCKSDB_QUEUE_DIRECTORY = "consumequeue_rocksdb"
"""The queues of a broker that keeps them in RocksDB."""
DLEDGER_INDEXES = "dledger-*/index"
"""Pattern of the directories that a DLedger of the broker indexes its log in."""
INDEX_DIRECTORY = "index"
"""The index of keys."""
STORE_CHECKPOINT_FILE = "checkpoint"
"""RocketMQ's StoreCheckpoint: the times up to which log, queues and index are durable."""
BROKER_LOCK_FILE = "lock"
"""Locked while a broker, or ``reput produce``, has the store open."""
ABORT_FILE = "abort"
"""Exists from the start of a broker to its clean end; in STATE_DIRECTORY, of a dispatcher."""
TOPICS_FILE = "config/topics.json"
"""The topics, with their queues and types."""
SUBSCRIPTION_GROUP_FILE = "config/subscriptionGroup.json"
"""The consumer groups."""
CONSUMER_OFFSET_FILE = "config/consumerOffset.json"
"""The committed offsets of consumer groups."""
CONSUMER_FILTER_FILE = "config/consumerFilter.json"
"""The SQL92 filters of consumer groups."""
DELAY_OFFSET_FILE = "config/delayOffset.json"
"""The offsets up to which delayed messages were delivered."""
TIMER_CHECKPOINT_FILE = "config/timercheck"
"""How far the wheel of timed messages was."""
ROCKSDB_CONFIG_DIRECTORY = "config/rdb"
"""The same as the files above, of a broker that keeps them in RocksDB."""
BACKUP_SUFFIX = ".bak"
"""Added to the name of a file of the broker's configuration: what stood there before."""
TEMPORARY_SUFFIX = ".tmp"
"""Added to the name of a file that is about to take the place of the one of that name."""

# an output's state
STATE_DIRECTORY = "reput"
"""Everything of an output that no broker knows."""
WATERMARK_FILE = "watermark"
"""The durable position."""
ENDS_FILE = "ends"
"""Where the entries of every queue end."""
BUILD_RECORD_FILE = "built.json"
"""The settings that decide bytes."""
SEAL_FILE = "seal.json"
"""Checksums of what was found right."""
LEDGER_FILE = "quarantine.jsonl"
"""The ranges of the log that got no entry."""
OWNER_LOCK_FILE = "owner.lock"
"""Locked while a dispatcher runs."""
OWNER_FILE = "owner.json"
"""The process that holds the lock."""
PROBE_FILE = "space-probe"
"""Written and removed to see whether the disk has space again."""
FOLLOWERS_DIRECTORY = "followers"
"""The positions of tables and other followers."""

# groups that consume from an output
GROUPS_DIRECTORY = f"{STATE_DIRECTORY}/groups"
"""A directory for each consumer group whose members are processes of ours."""
MEMBERS_DIRECTORY = "members"
"""A file for each member of the group, which it locks."""
HELD_QUEUES_DIRECTORY = "queues"
"""A file for each queue, by topic, which the member locks that consumes it."""
GROUP_LOCK_FILE = "alone.lock"
"""Locked by a process that has the group alone, and shared by members."""
SERVE_DIRECTORY = f"{STATE_DIRECTORY}/serve"
"""The state of ``reput serve``."""
OFFSET_JOURNALS = (f"{SERVE_DIRECTORY}/offsets.journal", f"{SERVE_DIRECTORY}/offsets.journal.2")
"""The commits that CONSUMER_OFFSET_FILE does not have yet, in two files that take turns."""
TURN_LOCK_FILE = f"{SERVE_DIRECTORY}/turn.lock"
"""Locked by whoever writes committed offsets."""
QUEUE_LOCKS_FILE = f"{SERVE_DIRECTORY}/locks.json"
"""The queues that clients have locked, to read them in order."""
DRAIN_JOURNAL = f"{STATE_DIRECTORY}/drain.journal"
"""The messages of an overlay that were sent into a broker."""

# units on their way from Spark's tasks, and Spark's checkpoint
SPOOL_DIRECTORY = "spool"
"""A file for each part of the log that a task scans or has scanned."""
CLAIM_SUFFIX = ".at"
"""A task's claim of a part."""
PARTIAL_SUFFIX = ".partial"
"""A part that is being written."""
PART_SUFFIX = ".part"
"""A whole part."""
SPARK_DIRECTORY = "spark"
"""Spark's checkpoint, unless the user names another place."""
SPARK_OFFSETS_DIRECTORY = "offsets"
"""A file for each batch that Spark has planned."""
SPARK_COMMITS_DIRECTORY = "commits"
"""A file for each batch that Spark has finished."""
SPARK_METADATA_FILE = "metadata"
"""The id of Spark's query."""
SPARK_START_FILE = "reput-start"
"""Our own: where the first batch of the checkpoint begins."""

# what is kept aside
REWIND_FILE = "rewind.json"
"""When a rewind was, from where and to where."""
REWOUND_PREFIX = "rewound-"
"""Put before the number of a rewind: the directory of the positions before it."""
PARTIAL_REWOUND_DIRECTORY = "rewound.partial"
"""Such a directory before all of it is durable."""
ASIDE_DIRECTORY = ".reput-rebuild"
"""The parts that a rebuild has not put in place yet."""
BUILD_DIRECTORY = "new"
"""The parts themselves, as below an output."""
EPOCH_PREFIX = "epoch-"
"""Put before the id of an owner: attempts of tasks that build queues on executors."""
SWAP_JOURNAL_FILE = "swap.json"
"""The parts that are to be put in place."""
REPLACED_MARK = ".replaced-"
"""Stands between the name of what was replaced and a number."""
INCOMPLETE_SUFFIX = ".incomplete"
"""Added to the name of a directory of Parquet files before all of them are there."""

_MAPPED_FILE_NAME = re.compile(r"[0-9]{20}\Z", re.ASCII)


def offset_to_file_name(offset: int) -> str:
    """20 digits, so that names sort as offsets do."""
    return f"{offset:020d}"


def is_mapped_file_name(name: str) -> bool:
    """Whether a directory entry is named as RocketMQ names its files: 20 digits, a Java long."""
    return _MAPPED_FILE_NAME.match(name) is not None and int(name) < 1 << 63
