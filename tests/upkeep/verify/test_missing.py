"""Files of an output that are gone: a verification names each one that the log says must be there,
and a repair with the dispatch that follows gives RocketMQ's bytes again.

Axes: the kind of index, which file of a queue, whole queues, topics and kinds, two kinds at once,
a log that lost its front. Consume queues are in small files, so that a queue has many.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.upkeep.verify.difference import Damage
from reput.upkeep.verify.run import Verification
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.golden import relaid_queues, tree
from tests.support.wire import UNIT

QUEUE_FILE_SIZE = 2000
EXT_FILE_SIZE = 4096


class Kept:
    """An output from which files are removed again and again."""

    def __init__(self, name: str, directory: Path, **settings: object) -> None:
        self.output = DerivedOutput.unpack(name, directory)
        settings = {"mappedFileSizeConsumeQueue": QUEUE_FILE_SIZE, **settings}
        with (self.output.store / "broker.conf").open("a") as conf:
            conf.writelines(f"{key}={value}\n" for key, value in settings.items())
        self.output.start()
        self.output.start()
        self._copy = directory / "kept"
        self.output.keep(self._copy)
        self.index = self.output.index()
        self.checkpoint = (self.output.root / "checkpoint").read_bytes()

    def restore(self) -> None:
        """Have everything there."""
        self.output.restore(self._copy)

    def remove(self, *paths: Path) -> Verification:
        """The findings of a verification where only these, relative to the output, are gone."""
        self.restore()
        for path in paths:
            here = self.output.root / path
            if here.is_dir():
                shutil.rmtree(here)
            else:
                here.unlink()
        return self.output.verify()

    def files(self, path: Path) -> list[str]:
        """Return the files that were at or below a path."""
        here = self._copy / path
        found = sorted(p for p in here.rglob("*") if p.is_file()) if here.is_dir() else [here]
        return [str(file.relative_to(self._copy)) for file in found]

    def check_healed(self) -> None:
        """A repair, then a run: all is as it was."""
        assert self.output.verify(repair=True).differences
        self.output.start()
        for kind in QUEUE_TREES:
            assert tree(self.output.root / kind) == tree(self._copy / kind)
        assert self.output.index() == self.index
        assert (self.output.root / "checkpoint").read_bytes() == self.checkpoint
        assert self.output.verify().differences == ()


def relative(output: DerivedOutput, pattern: str) -> list[Path]:
    return sorted(path.relative_to(output.root) for path in output.root.glob(pattern))


def missing(found: Verification) -> list[str]:
    return [d.path for d in found.differences if d.damage is Damage.MISSING]


@pytest.fixture(scope="module", params=["mixed", "ext", "lmq", "batch"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """An output whose queues are RocketMQ's bytes; ext files are compared as they come, since of
    another size RocketMQ has built none."""
    name = request.param
    kept = Kept(name, tmp_path_factory.mktemp(name), mappedFileSizeConsumeQueueExt=EXT_FILE_SIZE)
    output = kept.output
    if name != "ext":
        expected = relaid_queues(output.store, QUEUE_FILE_SIZE)
        assert tree(output.root / "consumequeue") == expected
    assert tree(output.root / "batchconsumequeue") == tree(output.store / "batchconsumequeue")
    assert kept.index == output.index(output.store)
    assert output.verify().differences == ()
    return kept


def in_turn(output: DerivedOutput, kind: str) -> Iterator[list[Path]]:
    """Every queue file of a kind, one of each queue at a time: queues do not hang together."""
    queues = [relative(output, f"{queue}/*") for queue in relative(output, f"{kind}/*/*")]
    for number in range(max(map(len, queues), default=0)):
        yield [files[number] for files in queues if number < len(files)]


def test_each_file_is_named(kept: Kept) -> None:
    """Every queue file of every kind, in turn, and no other."""
    for kind in QUEUE_TREES:
        for paths in list(in_turn(kept.output, kind)):
            assert sorted(missing(kept.remove(*paths))) == sorted(map(str, paths))


def choices(output: DerivedOutput) -> Iterator[list[Path]]:
    """Files, directories and combinations to remove at once."""
    for kind in QUEUE_TREES:
        topics = relative(output, f"{kind}/*")
        if not topics:
            continue
        queue = max(relative(output, f"{kind}/*/*"), key=lambda q: len(relative(output, f"{q}/*")))
        files = relative(output, f"{queue}/*")
        yield from ([files[0]], [files[len(files) // 2]], [files[-1]], files)
        yield from ([queue], [topics[0]], [Path(kind)])
    exts = relative(output, "consumequeue_ext/*/*")[:1]
    for ext in exts:
        queue = Path("consumequeue", *ext.parts[1:])
        yield from ([queue, ext], [queue, *relative(output, f"{ext}/*")[-1:]])
    yield [Path("index")]
    yield [
        Path(kind)
        for kind in (*QUEUE_TREES, "index", "checkpoint")
        if (output.root / kind).exists()
    ]


@pytest.mark.extended
def test_what_is_gone_is_healed(kept: Kept) -> None:
    """First, middle and last file, queue, topic, kind, a queue without its ext and the reverse."""
    for gone in list(choices(kept.output)):
        found = kept.remove(*gone)
        names = set(missing(found))
        wanted = {file for path in gone for file in kept.files(path) if file[:6] != "index/"}
        assert names >= wanted, gone
        assert (names > wanted) is any(path.parts[0] == "index" for path in gone), gone
        kept.check_healed()


def test_each_index_file_is_counted(tmp_path: Path) -> None:
    """Names of index files are times, which nothing else holds: a missing one is named by its
    neighbour and its first message; the files that are there are sound."""
    kept = Kept("mixed", tmp_path)
    files = relative(kept.output, "index/*")
    firsts = [content.begin_phy_offset for content in kept.index]
    for number, path in enumerate(files):
        found = kept.remove(path).differences
        relation, neighbour = (
            ("before", files[number + 1]) if path != files[-1] else ("after", files[-2])
        )
        assert [(d.damage, d.path) for d in found] == [
            (Damage.MISSING, f"index/(a file {relation} {neighbour.name})")
        ]
        assert found[0].physical_offset == (firsts[number] if number else 0)
        kept.check_healed()


def test_a_wild_address_names_no_file(tmp_path: Path, seed: int) -> None:
    """Noise over units of a queue looks like addresses of ext files that never were; the queue is
    what is wrong. Real ones that are gone at the same time are still named."""
    rng, kept = random.Random(seed), Kept("ext", tmp_path)
    queue = max(
        relative(kept.output, "consumequeue/*/*/*"),
        key=lambda path: len((kept.output.root / path).read_bytes().rstrip(b"\0")),
    )
    ext = relative(kept.output, f"consumequeue_ext/{queue.parts[1]}/{queue.parts[2]}/*")
    for gone, first in ((), 5), (ext[-1:], 5), (ext, 0):
        kept.remove(*gone)
        data = bytearray((kept.output.root / queue).read_bytes())
        for at in range(first, first + 3):
            address = rng.randrange(1 << 40, (1 << 63) - 1)
            data[at * UNIT.size + 12 : (at + 1) * UNIT.size] = (address - (1 << 63)).to_bytes(
                8, "big", signed=True
            )
        (kept.output.root / queue).write_bytes(data)
        found = kept.output.verify().differences
        wrong = [d for d in found if (d.path, d.damage) == (str(queue), Damage.UNIT)]
        assert sum(d.count for d in wrong) == 3
        assert missing(kept.output.verify()) == [*map(str, gone)]
        kept.check_healed()


def test_an_address_that_leads_back_is_the_queues_fault(tmp_path: Path, seed: int) -> None:
    """The ext unit before it is damaged, so that its own place is not known."""
    rng = random.Random(seed)
    kept = Kept("ext", tmp_path, mappedFileSizeConsumeQueueExt=EXT_FILE_SIZE)
    path = rng.choice(relative(kept.output, "consumequeue/*/*/*"))
    queue = kept.output.root / path
    units = list(UNIT.iter_unpack(queue.read_bytes()))
    at = rng.randrange(2, sum(size > 0 for _, size, _ in units))
    before = units[at - 1][2] + (1 << 63)
    ext = kept.output.root / "consumequeue_ext" / path.parts[1] / path.parts[2]
    file = ext / f"{before - before % EXT_FILE_SIZE:020}"
    data = bytearray(file.read_bytes())
    data[before % EXT_FILE_SIZE + 4] ^= 0xFF
    file.write_bytes(data)
    units[at] = (*units[at][:2], units[rng.randrange(at - 1)][2])
    queue.write_bytes(b"".join(UNIT.pack(*unit) for unit in units))
    found = kept.output.verify().differences
    entries = [(d.kind, d.position // UNIT.size) for d in found if d.path == str(path)]
    assert entries == [("consumequeue", at)]
    assert len(found) == 2
    kept.check_healed()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("killed", {"enableConsumeQueueExt": "true"}), ("batch", {})],
)
def test_each_file_is_named_where_the_log_lost_its_front(
    tmp_path: Path, name: str, settings: dict[str, object]
) -> None:
    """A queue keeps its last file, and what the log still has messages for: each of them is named,
    also where the log has no message of the queue left."""
    kept = Kept(name, tmp_path, **settings)
    log = sorted((kept.output.store / "commitlog").iterdir())
    for path in log[: len(log) * 3 // 4]:
        path.unlink()
    log_min = int(log[len(log) * 3 // 4].name)
    assert kept.output.verify().differences == ()
    count = gone = 0
    for kind in QUEUE_TREES:
        last = {path.parent: path for path in relative(kept.output, f"{kind}/*/*/*")}
        for paths in list(in_turn(kept.output, kind)):
            kept.restore()
            is_needed = {
                path: kind == "consumequeue_ext"
                or has_unit_from(log_min, (kept.output.root / path).read_bytes(), kind)
                for path in paths
            }
            needed = [path for path in paths if is_needed[path] or last[path.parent] == path]
            if needed:
                found = {difference.path for difference in kept.remove(*needed).differences}
                assert found >= {str(path) for path in needed}
                count += len(needed)
                gone += sum(not is_needed[path] for path in needed)
                kept.output.verify(repair=True)
                kept.output.start()
                assert kept.output.verify().differences == ()
    print(f"{name}: {count} files, {gone} of queues that have no message left")
    assert count > 20
    assert (gone > 0) is (name == "killed")


def has_unit_from(log_min: int, data: bytes, kind: str) -> bool:
    """Whether a queue file has a unit of a message at or after an offset."""
    step = 46 if kind == "batchconsumequeue" else 20
    return any(
        int.from_bytes(data[at : at + 8], "big") >= log_min for at in range(0, len(data), step)
    )
