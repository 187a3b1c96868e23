"""Stores that are refused: a DLedger log, and queues or topics in RocksDB.

Read as ordinary stores they would seem damaged throughout, or give queues that no broker reads. The
statements of ``broker.conf`` decide. Without one, as in a copy without its file, the store's
directories decide. Their meaning may then be doubtful (a broker that writes its queues twice has
files and RocksDB side by side), so the error also names the setting that settles it. The reasons
for the refusal are in docs/decisions/0008-dledger-and-rocksdb.md.

An entry of DLedger's log precedes each record; integers are big-endian:

| offset | size | field |
|---|---|---|
| 0 | 4 | magic, 1 |
| 4 | 4 | size of the entry, these 48 bytes included |
| 8 | 8 | index |
| 16 | 8 | term |
| 24 | 8 | position of the entry in the log |
| 32 | 4 | channel |
| 36 | 4 | CRC of the entries so far, 0 |
| 40 | 4 | CRC of the body |
| 44 | 4 | size of the body |

Source: RocketMQ 5.3.3 and 5.5.1 ``DefaultMessageStore``, ``BrokerController``,
``RocksDBConsumeQueueStore``, ``CombineConsumeQueueStore``, ``ConfigStorage``; DLedger 0.3.1.2
``DLedgerConfig``, ``DLedgerEntryCoder``.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from reput.store.brokerconf import JAVA_SPACE, Properties, equals_ignore_case
from reput.store.errors import UsageError
from reput.store.files import (
    CONSUME_QUEUE_DIRECTORY,
    DLEDGER_INDEXES,
    ROCKSDB_CONFIG_DIRECTORY,
    ROCKSDB_QUEUE_DIRECTORY,
    is_mapped_file_name,
)

DLEDGER_ENTRY_PREFIX = struct.Struct(">iiqqqiiii")
_DLEDGER_MAGIC = 1
_ROCKSDB_CURRENT = "CURRENT"
"""A file that every RocksDB directory has."""
_FILES_STORE_TYPE, _ROCKSDB_STORE_TYPE = "default", "defaultRocksDB"
TEXTS = frozenset(("storeType", "combineCQLoadingCQTypes", "configManagerVersion"))
SWITCHES = frozenset(
    ("enableDLegerCommitLog", "rocksdbCQDoubleWriteEnable", "combineCQUseRocksdbForLmq")
)
"""The settings that decide here, besides enableMultiDispatch."""

_DLEDGER = (
    "DLedger's log is not read; consume its messages with a client, or move the brokers to "
    "controller mode, whose log is read"
)
_ROCKSDB_QUEUES = (
    "queues and topics in RocksDB are not read; to build queue files from its log, link commitlog/ "
    "into a new store with the topics as config/topics.json and a broker.conf of storeType=default"
)
_ROCKSDB_TOPICS = (
    "topics in RocksDB are not read, so that queue.type is unknown; write config/topics.json from "
    "what mqadmin exportMetadata gives, then state configManagerVersion=v1 in {conf}"
)


def check_supported(root: Path, stated: Properties) -> None:
    """Refuse the store at ``root`` if its log, queues or topics are in an unsupported format.

    ``stated`` is its property file. Raises UsageError.
    """
    _check_log_kind(root, stated)
    _check_queue_store(root, stated)
    _check_topics(root, stated)


def check_log_files(directories: Iterable[Path]) -> None:
    """Refuse log directories whose newest file begins with a DLedger entry.

    This happens if only DLedger's data was copied. Unlistable directories are left to their
    readers. Raises UsageError.
    """
    files = [path for directory in directories for path in _mapped_files(directory)]
    for path in sorted(files, key=lambda path: path.name, reverse=True):
        try:
            with path.open("rb") as opened:
                head = opened.read(DLEDGER_ENTRY_PREFIX.size)
        except OSError:
            return
        if any(head):
            if is_dledger_entry(head, int(path.name)):
                raise UsageError(
                    f"{path} begins with a DLedger entry at physical offset {int(path.name)}: "
                    f"{_DLEDGER}"
                )
            return


def is_dledger_entry(head: bytes, position: int) -> bool:
    """Whether bytes at a position of a log are the prefix of a DLedger entry."""
    if len(head) < DLEDGER_ENTRY_PREFIX.size:
        return False
    magic, size, _, _, pos, _, _, _, body_size = DLEDGER_ENTRY_PREFIX.unpack_from(head)
    return bool(
        magic == _DLEDGER_MAGIC
        and pos == position
        and body_size >= 0
        and size == DLEDGER_ENTRY_PREFIX.size + body_size
    )


def _check_log_kind(root: Path, stated: Properties) -> None:
    key = "enableDLegerCommitLog"
    if stated.is_true(key):
        raise UsageError(f"{key} in {stated.path} is true: {_DLEDGER}")
    if key not in stated:
        for path in sorted(root.glob(DLEDGER_INDEXES)):
            raise UsageError(
                f"{path.parent} is a DLedger log: {_DLEDGER}; if the broker has left it, "
                f"state {key}=false in {stated.path}"
            )


def _check_queue_store(root: Path, stated: Properties) -> None:
    store_type = stated.text("storeType")
    if store_type is not None and equals_ignore_case(store_type, _ROCKSDB_STORE_TYPE):
        raise UsageError(f"storeType in {stated.path} is {store_type!r}: {_ROCKSDB_QUEUES}")
    if stated.is_true("rocksdbCQDoubleWriteEnable"):
        _check_double_write(stated)
    elif store_type is None:
        for name in (CONSUME_QUEUE_DIRECTORY, ROCKSDB_QUEUE_DIRECTORY):
            if _is_rocksdb(root / name):
                raise UsageError(
                    f"{root / name} is a RocksDB store: {_ROCKSDB_QUEUES}; if the broker writes "
                    f"queue files too, state storeType={_FILES_STORE_TYPE} in {stated.path}"
                )


def _check_double_write(stated: Properties) -> None:
    """Check a store that writes queues as files and into RocksDB: the files are complete, except
    under two settings."""
    key = "combineCQLoadingCQTypes"
    loaded = stated.text(key)
    if loaded is not None and not any(
        equals_ignore_case(kind.strip(JAVA_SPACE), _FILES_STORE_TYPE) for kind in loaded.split(";")
    ):
        raise UsageError(f"{key} in {stated.path} is {loaded!r}: {_ROCKSDB_QUEUES}")
    key = "combineCQUseRocksdbForLmq"
    if stated.is_true(key) and stated.is_true("enableMultiDispatch"):
        raise UsageError(
            f"{key} in {stated.path} is true: light queues in RocksDB are not read; give a "
            f"broker.conf with {key}=false to build them as files, or enableMultiDispatch=false to "
            "leave them out"
        )


def _check_topics(root: Path, stated: Properties) -> None:
    key = "configManagerVersion"
    fix = _ROCKSDB_TOPICS.format(conf=stated.path)
    if stated.text(key) == "v2":
        raise UsageError(f"{key} in {stated.path} is 'v2': {fix}")
    if key not in stated and _is_rocksdb(root / ROCKSDB_CONFIG_DIRECTORY):
        raise UsageError(f"{root / ROCKSDB_CONFIG_DIRECTORY} is a RocksDB store: {fix}")


def _is_rocksdb(directory: Path) -> bool:
    return (directory / _ROCKSDB_CURRENT).is_file()


def _mapped_files(directory: Path) -> list[Path]:
    try:
        named = [path for path in directory.iterdir() if is_mapped_file_name(path.name)]
        # a pipe would be waited for
        return [path for path in named if stat.S_ISREG(path.lstat().st_mode)]
    except OSError:
        return []
