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
from collections.abc import Iterable, Mapping
from pathlib import Path

from store.errors import UsageError
from store.log.commitlog import is_mapped_file_name

DLEDGER_ENTRY_PREFIX = struct.Struct(">iiqqqiiii")
_DLEDGER_MAGIC = 1
_DLEDGER_DIRECTORIES = "dledger-*/index"
_QUEUE_DIRECTORIES = ("consumequeue", "consumequeue_rocksdb")
_CONFIG_DIRECTORY = Path("config") / "rdb"
_ROCKSDB_CURRENT = "CURRENT"
"""A file that every RocksDB directory has."""
_FILES_STORE_TYPE = "default"

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


def check_supported(root: Path, stated: Mapping[str, str], conf: Path) -> None:
    """Refuse the store at ``root`` if its log, queues or topics are in an unsupported format.

    ``stated`` are the values of the property file ``conf``, which need not exist. Raises
    UsageError.
    """
    _check_log_kind(root, stated, conf)
    _check_queue_store(root, stated, conf)
    _check_topics(root, stated, conf)


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


def _check_log_kind(root: Path, stated: Mapping[str, str], conf: Path) -> None:
    key = "enableDLegerCommitLog"
    if _is_true(stated, key):
        raise UsageError(f"{key} in {conf} is true: {_DLEDGER}")
    if key not in stated:
        for path in sorted(root.glob(_DLEDGER_DIRECTORIES)):
            raise UsageError(
                f"{path.parent} is a DLedger log: {_DLEDGER}; if the broker has left it, "
                f"state {key}=false in {conf}"
            )


def _check_queue_store(root: Path, stated: Mapping[str, str], conf: Path) -> None:
    store_type = stated.get("storeType", _FILES_STORE_TYPE)
    if store_type.lower() != _FILES_STORE_TYPE:
        raise UsageError(f"storeType in {conf} is {store_type!r}: {_ROCKSDB_QUEUES}")
    if _is_true(stated, "rocksdbCQDoubleWriteEnable"):
        _check_double_write(stated, conf)
    elif "storeType" not in stated:
        for name in _QUEUE_DIRECTORIES:
            if _is_rocksdb(root / name):
                raise UsageError(
                    f"{root / name} is a RocksDB store: {_ROCKSDB_QUEUES}; if the broker writes "
                    f"queue files too, state storeType={_FILES_STORE_TYPE} in {conf}"
                )


def _check_double_write(stated: Mapping[str, str], conf: Path) -> None:
    """Check a store that writes queues as files and into RocksDB: the files are complete, except
    under two settings."""
    key = "combineCQLoadingCQTypes"
    loaded = stated.get(key, _FILES_STORE_TYPE)
    if _FILES_STORE_TYPE not in [kind.strip().lower() for kind in loaded.split(";")]:
        raise UsageError(f"{key} in {conf} is {loaded!r}: {_ROCKSDB_QUEUES}")
    key = "combineCQUseRocksdbForLmq"
    if _is_true(stated, key) and _is_true(stated, "enableMultiDispatch"):
        raise UsageError(
            f"{key} in {conf} is true: light queues in RocksDB are not read; give a broker.conf "
            f"with {key}=false to build them as files, or enableMultiDispatch=false to leave them "
            "out"
        )


def _check_topics(root: Path, stated: Mapping[str, str], conf: Path) -> None:
    key = "configManagerVersion"
    fix = _ROCKSDB_TOPICS.format(conf=conf)
    if stated.get(key) == "v2":
        raise UsageError(f"{key} in {conf} is 'v2': {fix}")
    if key not in stated and _is_rocksdb(root / _CONFIG_DIRECTORY):
        raise UsageError(f"{root / _CONFIG_DIRECTORY} is a RocksDB store: {fix}")


def _is_true(stated: Mapping[str, str], key: str) -> bool:
    # same rule as Boolean.parseBoolean
    return stated.get(key, "").lower() == "true"


def _is_rocksdb(directory: Path) -> bool:
    return (directory / _ROCKSDB_CURRENT).is_file()


def _mapped_files(directory: Path) -> list[Path]:
    try:
        named = [path for path in directory.iterdir() if is_mapped_file_name(path.name)]
        # a pipe would be waited for
        return [path for path in named if stat.S_ISREG(path.lstat().st_mode)]
    except OSError:
        return []
