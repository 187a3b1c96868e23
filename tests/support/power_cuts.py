"""The directory trees that a power cut may leave, after any of the recorded operations.

The disk is assumed to promise no more than POSIX. Data survives if its file was synced after the
write, and a name if its directory was. Of everything else, any part may survive, in any order: a
write may survive whole, torn at a byte, a sector or a page, or as the file's new length alone; data
may survive without the length set before it, and is then lost; a rename survives or not, but never
in part. The length that a file has is always one that it once had.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from reput.store.files import STATE_DIRECTORY, VISIBLE_FILE
from tests.support.recorder import (
    ROOT,
    Content,
    FailedSync,
    Names,
    Operation,
    Recorder,
    Resize,
    Sync,
    SyncAll,
    SyncRange,
    Tree,
    Write,
    read_tree,
)
from tests.support.wire import UNIT

PAGE = 4096
TEARS = (64, 512, PAGE)
"""Units of a torn write in bytes: any of its aligned blocks of one of these sizes may survive. The
smallest stands for a page, since the files here are that much smaller than real ones."""
PARTED_BYTES, LOST_BYTES = 4, 7
"""A queue's unit of which a page's border parts the first four bytes, as every fifth border does.
In a log beyond 4 GiB these count, and without them it looks like a unit of an earlier message; in
the small logs here that takes all bytes of its offset but the last. No two such units lie side by
side, and none is a file's first."""

Piece = tuple[int, int]
"""[start, end) of a write's bytes. The file grows up to the end, even if the piece is empty."""
_Pending = Names | Write | Resize


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of a pending operation that survives. Only writes have pieces."""

    operation: _Pending
    pieces: tuple[Piece, ...] | None = None
    """None if the whole operation survives."""


@dataclass(frozen=True, slots=True)
class Image:
    """The content of the disk after a power cut."""

    tree: Tree
    numbers: dict[str, int]
    """Path -> the number that the recording gives to the file."""

    def key(self) -> int:
        """Return a hash of the tree."""
        return hash(tuple(self.tree.items()))


class Disk:
    """A disk that receives operations in order, and knows which of them are durable."""

    def __init__(self, begin: Content, directories: Collection[int]) -> None:
        """``directories`` are the numbers of all directories, now or later; others are files."""
        self._is_directory = frozenset(directories)
        self._directories = {key: dict(names) for key, names in begin.directories.items()}
        self._files = {key: bytes(data) for key, data in begin.files.items()}
        self.pending: list[_Pending] = []

    @classmethod
    def after(cls, recorder: Recorder, count: int | None = None) -> Disk:
        """The disk after the first ``count`` recorded operations; after all of them for None."""
        disk = cls(recorder.begin, recorder.directories())
        for operation in recorder.operations[:count]:
            disk.apply(operation)
        return disk

    def durable(self) -> Tree:
        """Return the tree that survives in every case."""
        return self.image([]).tree

    def apply(self, operation: Operation) -> None:
        """One more operation has returned."""
        if isinstance(operation, FailedSync):
            self._lose(operation.of)
        elif isinstance(operation, Sync | SyncRange | SyncAll):
            self._make_durable(self._settle(operation))
        else:
            self.pending.append(operation)

    def _lose(self, sync: Sync | SyncRange | SyncAll) -> None:
        """The writes are lost; names and lengths are in a journal, and stay to be written."""
        if isinstance(sync, Sync):
            settled = {id(one) for one in self.pending if getattr(one, "file", None) == sync.file}
        else:
            settled = set(map(id, self._settle(sync)))
        self.pending = [
            one for one in self.pending if not isinstance(one, Write) or id(one) not in settled
        ]

    def _settle(self, sync: Sync | SyncRange | SyncAll) -> Sequence[_Pending]:
        """The pending operations that a sync is for."""
        if isinstance(sync, Sync):
            return self._of_file(sync.file)
        return self._of_range(sync) if isinstance(sync, SyncRange) else self.pending

    def _of_file(self, number: int) -> Sequence[_Pending]:
        done: list[_Pending] = []
        for index, pending in enumerate(self.pending):
            if not isinstance(pending, Names):
                if pending.file == number:
                    done.append(pending)
            elif number in pending.synced_by:
                rest = replace(pending, synced_by=pending.synced_by - {number})
                self.pending[index] = rest
                if not rest.synced_by:
                    done.append(rest)
        return done

    def _of_range(self, synced: SyncRange) -> Sequence[_Pending]:
        """Whole pages, and whatever is needed to find them: the length of the file."""
        start, end = synced.start - synced.start % PAGE, synced.end + -synced.end % PAGE
        done: list[_Pending] = []
        rest: list[_Pending] = []
        for pending in self.pending:
            if isinstance(pending, Names) or pending.file != synced.file:
                rest.append(pending)
            elif isinstance(pending, Resize):
                done.append(pending)
            else:
                bounds = (0, start, end, pending.at + len(pending.data))
                for low, high in pairwise(max(bound - pending.at, 0) for bound in bounds):
                    if data := pending.data[low:high]:
                        part = replace(pending, at=pending.at + low, data=data)
                        (done if start <= part.at < end else rest).append(part)
        self.pending = [*done, *rest]
        return done

    def _make_durable(self, done: Sequence[_Pending]) -> None:
        for operation in done:
            if isinstance(operation, Names):
                _name(self._directories, operation)
            else:
                before = self._files.get(operation.file, b"")
                self._files[operation.file] = _written(before, [Kept(operation)])
        gone = set(map(id, done))
        # an earlier change of the same name is durable too
        settled = {
            change[:2] for operation in done if isinstance(operation, Names)
            for change in operation.changes
        }  # fmt: skip
        last = max((i for i, one in enumerate(self.pending) if id(one) in gone), default=-1)
        kept: list[_Pending] = []
        for index, one in enumerate(self.pending):
            if id(one) in gone:
                continue
            if not isinstance(one, Names) or index > last or not settled:
                kept.append(one)
            elif changes := tuple(change for change in one.changes if change[:2] not in settled):
                kept.append(replace(one, changes=changes))
        self.pending = kept

    def image(self, kept: Sequence[Kept]) -> Image:
        """Return the tree if these pending operations survive; they are given in their order."""
        directories = {key: dict(names) for key, names in self._directories.items()}
        changes: dict[int, list[Kept]] = {}
        for one in kept:
            if isinstance(one.operation, Names):
                _name(directories, one.operation)
            else:
                changes.setdefault(one.operation.file, []).append(one)
        tree: Tree = {}
        numbers: dict[str, int] = {}

        def visit(directory: int, prefix: str) -> None:
            for name, number in sorted(directories.get(directory, {}).items()):
                path = prefix + name
                numbers[path] = number
                if number in self._is_directory:
                    tree[path] = None
                    visit(number, path + "/")
                else:
                    content = self._files.get(number, b"")
                    found = changes.get(number)
                    tree[path] = _written(content, found) if found else content

        visit(ROOT, "")
        return Image(tree, numbers)

    def chosen_images(self) -> Iterator[Image]:
        """Yield the images in which none of the pending operations survives, all of them, each one
        alone, and all but each one."""
        everything = [Kept(operation) for operation in self.pending]
        yield self.image([])
        if everything:
            yield self.image(everything)
        if len(everything) > 1:
            for index, one in enumerate(everything):
                yield self.image([one])
                yield self.image(everything[:index] + everything[index + 1 :])

    def random_image(self, rng: random.Random) -> Image:
        """Return an image with a random part of the pending operations, and with torn writes."""
        likely, torn = rng.choice((0.1, 0.5, 0.9)), rng.choice((0.0, 0.3, 1.0))
        kept = []
        for operation in self.pending:
            if rng.random() < likely:
                is_torn = isinstance(operation, Write) and rng.random() < torn
                kept.append(Kept(operation, _tear(rng, operation) if is_torn else None))
        return self.image(kept)


def _tear(rng: random.Random, write: _Pending) -> tuple[Piece, ...]:
    """Return the surviving pieces of a torn write: some of its blocks, its first bytes, all but the
    first bytes of a parted unit and what is before it, or only its length."""
    assert isinstance(write, Write)
    size, page = len(write.data), TEARS[0]
    parted = [
        at for at in range(0, size, UNIT.size) if (write.at + at) % page == page - PARTED_BYTES
    ]
    how = rng.choice(("bytes", *(["unit"] if parted else []), "length", *TEARS))
    if how == "bytes":
        return ((0, rng.randrange(size + 1)),)
    if how == "unit":
        return ((min(rng.choice(parted) + LOST_BYTES, size), size),)
    if isinstance(how, str):
        return ((size, size),)
    bounds = [0, *range(-write.at % how or how, size, how), size]
    kept = tuple(piece for piece in pairwise(bounds) if rng.random() < 0.5)
    return kept if rng.random() < 0.5 else (*kept, (size, size))


def _name(directories: dict[int, dict[str, int]], operation: Names) -> None:
    for directory, name, file in operation.changes:
        names = directories.setdefault(directory, {})
        names.pop(name, None)
        if file is not None:
            names[name] = file


def _written(content: bytes, changes: Sequence[Kept]) -> bytes:
    data, size = bytearray(content), len(content)
    for kept in changes:
        operation = kept.operation
        assert not isinstance(operation, Names)
        if isinstance(operation, Resize):
            size = operation.size
            data[size:] = bytes(max(len(data) - size, 0))
            continue
        pieces = ((0, len(operation.data)),) if kept.pieces is None else kept.pieces
        for low, high in pieces:
            data.extend(bytes(max(operation.at + high - len(data), 0)))
            data[operation.at + low : operation.at + high] = operation.data[low:high]
            if operation.grows:
                size = max(size, operation.at + high)
    return bytes(data[:size]).ljust(size, b"\0")


def mount(tree: Tree, root: Path, *, same_boot: bool = False) -> None:
    """Replace everything in a directory by a tree, by default in another boot than that of its
    writers: a visible end is then one of a boot that has another name."""
    shutil.rmtree(root)
    root.mkdir()
    for name, data in tree.items():
        path = f"{root}/{name}"
        if data is None:
            Path(path).mkdir()
            continue
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.ftruncate(fd, len(data))
        os.pwrite(fd, data.rstrip(b"\0"), 0)
        if name.endswith(f"{STATE_DIRECTORY}/{VISIBLE_FILE}") and not same_boot:
            # of no boot at all, so that a further cut does not bring the first boot back
            os.pwrite(fd, b"\xff" * len(data), 0)
        os.close(fd)


class Power:
    """Power cuts, at chosen moments of a ``with`` block, of a disk that has one directory."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._recorder = Recorder(root)

    def __enter__(self) -> Power:
        self._recorder.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.__exit__(*error)

    def fail(self, rng: random.Random, let_go: Callable[[], object]) -> None:
        """Cut the power now: leave a random image of the disk. ``let_go`` closes the files that the
        process has open."""
        self._begin_with(Disk.after(self._recorder).random_image(rng).tree, let_go)

    def kill(self, _rng: random.Random, let_go: Callable[[], object]) -> None:
        """Kill the process now: everything that it wrote stays. ``let_go`` is as above."""
        self._begin_with(read_tree(self._root), let_go, same_boot=True)

    def _begin_with(
        self, tree: Tree, let_go: Callable[[], object], *, same_boot: bool = False
    ) -> None:
        self._recorder.__exit__()
        let_go()
        mount(tree, self._root, same_boot=same_boot)
        self._recorder = Recorder(self._root)
        self._recorder.__enter__()
