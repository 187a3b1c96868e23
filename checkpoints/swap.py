"""Swap a rebuilt output in atomically, crash-safe at every step.

OUTPUT/.reput-rebuild/new/        the parts, built there as below an output of its own
OUTPUT/.reput-rebuild/epoch-ID/   attempts of tasks that build queues on executors
OUTPUT/.reput-rebuild/swap.json   the parts to be swapped; written when all of them are durable
OUTPUT/NAME.replaced-N            the part that stood there before

Without ``swap.json`` nothing has changed, and the built parts are discarded. Once it exists, every
part is put in place by this process or by the next owner of the output (``finish_swap``). One
system call exchanges a part, a directory or a file, so that its name always stands for the whole
old or the whole new one; only on a file system without that call is there a moment with neither.
Parts are swapped in the order given; the state directory, which describes the others, comes last.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from reput.checkpoints.ownership import Ownership
from reput.store import fsops, jsontext
from reput.store.errors import StoreError, UsageError
from reput.store.files import (
    ASIDE_DIRECTORY,
    BUILD_DIRECTORY,
    EPOCH_PREFIX,
    REPLACED_MARK,
    SWAP_JOURNAL_FILE,
)

_REPLACED_NAME = re.compile(rf"(.+){re.escape(REPLACED_MARK)}([1-9][0-9]{{0,8}})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Step:
    """One part of a swap."""

    path: str
    """Path below the output."""
    kept: str
    """Path below the output to which the old part is moved."""
    inode: int | None
    """Inode of the new part, which shows whether it is already in place; None if there is no new
    part."""


def build_root(output: Path) -> Path:
    """Return the directory to build in: an output of its own on the same file system."""
    return output / ASIDE_DIRECTORY / BUILD_DIRECTORY


@contextmanager
def epoch_of(built: Path) -> Iterator[Path]:
    """Yield a new directory beside ``build_root`` in which tasks on executors write.

    Its name is random: a task that an earlier owner has left running never writes into it. When the
    block ends the directory is removed, and tasks that still run can create nothing in its place.
    """
    epoch = built.with_name(EPOCH_PREFIX + uuid.uuid4().hex)
    fsops.make_directories(epoch, built.parent)
    try:
        yield epoch
    finally:
        _remove_epoch(epoch)


def _remove_epoch(epoch: Path) -> None:
    # a task may be creating files in it, and finds none of its paths from the rename on
    gone = epoch.with_name(f"gone-{epoch.name}")
    fsops.rename(epoch, gone)
    fsops.remove_tree(gone)


def clear_aside(output: Path) -> None:
    """Remove parts that were built and not swapped in. Only the owner of the output may call it."""
    aside = output / ASIDE_DIRECTORY
    if aside.is_dir():
        # the journal of a swap that is done must not come back: others own its parts from now on
        fsops.sync_directory(aside)
    for epoch in aside.glob(f"{EPOCH_PREFIX}*"):
        _remove_epoch(epoch)
    fsops.remove_tree(aside)


def check_swappable(output: Path, parts: Iterable[str]) -> None:
    """Raises UsageError for a part that cannot be exchanged: a link, or one on another file
    system."""
    device = output.stat().st_dev
    for part in parts:
        path = output / part
        if path.is_symlink() or (path.exists() and path.stat().st_dev != device):
            raise UsageError(
                f"{path} is a link or on another file system than {output}, so that nothing built "
                "beside it can take its place; build into another output with `output=DIR`"
            )


def swap_in(output: Path, parts: Sequence[str]) -> list[Path]:
    """Put built parts in place; keep the old parts and return their paths.

    ``parts`` are paths below the output, in order; a part that was not built is only moved out of
    the way. Only the owner of the output may call it. Raises OutputError, after which
    ``finish_swap`` resumes.
    """
    number = 1 + max((number for _, _, number in _replaced(output)), default=0)
    new = build_root(output)
    steps = [
        _Step(part, _kept(part, number), _inode(new / part))
        for part in parts
        if _inode(new / part) is not None or _inode(output / part) is not None
    ]
    text = json.dumps([asdict(step) for step in steps])
    fsops.replace_file(output / ASIDE_DIRECTORY / SWAP_JOURNAL_FILE, text.encode())
    return _finish(output, steps)


def finish_swap(output: Path) -> list[Path]:
    """Resume a swap that was killed, or discard parts whose swap had not begun.

    It costs one stat where nothing was left. It returns the parts that were replaced and kept.
    Raises OwnershipError where the output is in use.
    """
    if not (output / ASIDE_DIRECTORY).is_dir():
        return []
    with Ownership(output):
        return finish_owned_swap(output)


def has_begun_swap(output: Path) -> bool:
    """Return whether a start would complete the swap of a rebuild."""
    return (output / ASIDE_DIRECTORY / SWAP_JOURNAL_FILE).exists()


def finish_owned_swap(output: Path) -> list[Path]:
    """Do the work of ``finish_swap`` for a caller that already owns the output."""
    journal = output / ASIDE_DIRECTORY / SWAP_JOURNAL_FILE
    try:
        steps = _steps(jsontext.parse(journal.read_text("utf-8")))
    except FileNotFoundError:
        clear_aside(output)
        return []
    except ValueError as error:
        raise StoreError(
            f"cannot read {journal}, which says what a rebuild had begun to swap: {error}; "
            f"look at what is in {journal.parent}, then remove it",
            path=journal,
        ) from error
    # the steps that a killed process has taken may be known to the kernel alone
    fsops.sync_file_system_of(output)
    return _finish(output, steps)


def _finish(output: Path, steps: Sequence[_Step]) -> list[Path]:
    for step in steps:
        _take(output, step)
    fsops.unlink(output / ASIDE_DIRECTORY / SWAP_JOURNAL_FILE)
    clear_aside(output)
    return [kept for step in steps if _inode(kept := output / step.kept) is not None]


def _take(output: Path, step: _Step) -> None:
    """Swap one part; it may be called again after a kill at any point in it."""
    target, kept = output / step.path, output / step.kept
    old = new = build_root(output) / step.path
    fsops.make_directories(target.parent, output)
    fsops.make_directories(kept.parent, output)
    if step.inode is None:
        old = target
    elif _inode(new) is not None and _inode(target) != step.inode:
        if _inode(kept) is not None:
            # the last swap was killed between two renames; a file that is there was made since
            # then, as the owner's lock is
            fsops.remove_tree(target)
        elif _inode(target) is not None and not fsops.exchange(new, target):
            fsops.rename(target, kept)
        if _inode(target) is None:
            fsops.rename(new, target)
    if _inode(old) is not None and _inode(kept) is None:
        fsops.rename(old, kept)


def _steps(document: object) -> list[_Step]:
    """Return the steps of a journal. Raises ValueError, also for a path that leads elsewhere."""
    if not isinstance(document, list):
        raise ValueError("there is no list of steps")
    steps = [jsontext.build(_Step, fields) for fields in document]
    for path in (path for step in steps for path in (step.path, step.kept)):
        parts = os.fsencode(path).split(b"/")
        if {b"", b".", b".."} & {*parts} or b"\0" in b"".join(parts) or max(map(len, parts)) > 255:
            raise ValueError(f"{path!r:.80} is no path below the output")
    return steps


def _kept(part: str, number: int) -> str:
    """Return where the old part goes: ``consumequeue.replaced-N/Topic`` for ``consumequeue/Topic``,
    which no broker takes for a topic."""
    first, slash, subpath = part.partition("/")
    return f"{first}{REPLACED_MARK}{number}{slash}{subpath}"


def _inode(path: Path) -> int | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat().st_ino
    return None


def _replaced(output: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the parts that swaps have kept: path, the part's original name, number."""
    for path in sorted(output.iterdir()):
        if match := _REPLACED_NAME.match(path.name):
            yield path, match[1], int(match[2])


def drop_replaced(output: Path, names: Iterable[str]) -> list[Path]:
    """Remove the kept old versions of these parts (original names) and return their paths.

    Only the owner of the output may call it.
    """
    dropped = [path for path, name, _ in _replaced(output) if name in names]
    for path in dropped:
        fsops.remove_tree(path)
    return dropped
