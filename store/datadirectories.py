"""The directories of a store's data, and the check that reput writes nothing else into them.

When a broker loads its commitlog and queue directories, it takes every file for its own and stops
at the first that is not; it may overwrite or remove files in the other directories. So no output
and no target of reput may be inside one, of this store or of another.
"""

from __future__ import annotations

import os
from pathlib import Path

from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.store.files import (
    BROKER_CONF_FILE,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    QUEUE_DIRECTORIES,
    STATE_DIRECTORY,
    WATERMARK_FILE,
    is_mapped_file_name,
)

DATA_DIRECTORIES = frozenset({
    COMMIT_LOG_DIRECTORY, *QUEUE_DIRECTORIES, INDEX_DIRECTORY, "config", "timerlog",
    "compaction", "transaction",
})  # fmt: skip
"""Relative to a store's root: ``StorePathConfigHelper``, ``TimerMessageStore``,
``CompactionStore``."""


def check_target(
    target: Path, settings: StoreSettings | None = None, output: Path | None = None
) -> None:
    """Raise UsageError unless the directory ``target`` is safe to write.

    It must not be inside a store's data, contain the store's log, or be a file. Links are
    followed; the target need not exist.

    ``settings`` and ``output`` are the current store and output, whose directories may have any
    name or be missing; other stores are recognised by the files in and beside their directories.
    """
    resolved = _resolved(target)
    logs = [_resolved(path) for path in settings.commit_log_directories] if settings else []
    roots = [_resolved(path) for path in (settings.root if settings else None, output) if path]
    data = {*logs, *(root / name for root in roots for name in DATA_DIRECTORIES)}
    for directory in (resolved, *resolved.parents):
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{directory} is not a directory; give another place than {target}")
        if directory in data or _holds_data(directory):
            raise UsageError(
                f"{target} is in {directory}, which holds the data of a store: a broker could not "
                "load the files written there; give a directory outside of it"
            )
    for name in (DATA_DIRECTORIES - {COMMIT_LOG_DIRECTORY}) | {STATE_DIRECTORY}:
        for log in logs:
            if log.is_relative_to(resolved / name):
                raise UsageError(
                    f"{target} would be written around the commitlog {log}, which lies in its "
                    f"directory {name}; give a directory that does not hold the store there"
                )


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be used as a path: {error}") from error


def _holds_data(directory: Path) -> bool:
    """Whether a broker would read the files of a directory."""
    if directory.name in DATA_DIRECTORIES and _is_store(directory.parent, directory.name):
        return True
    try:
        with os.scandir(directory) as entries:
            return any(is_mapped_file_name(entry.name) for entry in entries)
    except OSError:
        return False


def _is_store(root: Path, besides: str) -> bool:
    """Whether anything but the directory ``besides`` shows that a broker or reput writes here."""
    directories = {COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY} - {besides}
    files = (root / BROKER_CONF_FILE, root / STATE_DIRECTORY / WATERMARK_FILE)
    return any((root / name).is_dir() for name in directories) or any(
        path.is_file() for path in files
    )
