"""Logs that lie in several directories, as storePathCommitLog and readOnlyCommitLogStorePaths
name them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path


def state_paths(store: Path, paths: Sequence[Path], read_only: Sequence[Path] = ()) -> None:
    """Have the store's broker.conf name these directories, and no others."""
    conf = store / "broker.conf"
    lines = [line for line in conf.read_text().splitlines() if "CommitLog" not in line.split("=")[0]
             or line.startswith("mapped")]  # fmt: skip
    lines.append(f"storePathCommitLog={','.join(map(str, paths))}")
    if read_only:
        lines.append(f"readOnlyCommitLogStorePaths={','.join(map(str, read_only))}")
    conf.write_text("".join(f"{line}\n" for line in lines))


def spread(store: Path, others: Sequence[Path], *, read_only: int = 0) -> list[Path]:
    """Deal a store's log out over its own directory and ``others``, file by file; the last
    ``read_only`` of these are stated as such. Returns all directories."""
    directories = [store / "commitlog", *others]
    for index, path in enumerate(sorted(directories[0].iterdir())):
        target = directories[index % len(directories)]
        target.mkdir(parents=True, exist_ok=True)
        if target != directories[0]:
            shutil.move(path, target)
    cut = len(directories) - read_only
    state_paths(store, directories[:cut], directories[cut:])
    return directories
