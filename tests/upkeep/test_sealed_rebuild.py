"""``reput rebuild --sealed`` by the real dispatcher: what is sealed is copied, the rest is built.

The log is damaged where it must not be read; queues, index, ledger and positions must be those of
a whole rebuild all the same.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.config import OnQueueGap
from reput.store.errors import OutputError, StoreError
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.upkeep.rebuild import Rebuilt, rebuild
from tests.support.configs import configured
from tests.support.golden import tree
from tests.support.grown_log import FILE_SIZE
from tests.support.index_model import Content
from tests.support.processes import open_files
from tests.support.sealed import BorderStore, Sealed
from tests.support.wire import PRE_BLANK, UNIT, file_name

pytestmark = pytest.mark.usefixtures("spark")

BLANK = OnQueueGap.BLANK
QUEUES = ("consumequeue", "batchconsumequeue")


@pytest.fixture
def sealed(ram_path: Path, seed: int) -> Sealed:
    return Sealed(ram_path, seed)


def config_of(sealed: Sealed) -> DispatcherConfig:
    return DispatcherConfig(sealed.log.root, sealed.output.root, once=True)


def build(sealed: Sealed, **options: object) -> Rebuilt:
    return rebuild(config_of(sealed), threading.Event(), sealed=True, **options)  # type: ignore[arg-type]


def derived(sealed: Sealed) -> tuple[dict[str, bytes], list[Content], list[bytes]]:
    """Queues, the index by content, the ledger's lines."""
    root, state = sealed.output.root, sealed.output.state
    queues = {f"{kind}/{name}": data for kind in QUEUES for name, data in tree(root / kind).items()}
    return queues, sealed.output.index(), (state / "quarantine.jsonl").read_bytes().splitlines()


def damage_log(sealed: Sealed) -> None:
    """Overwrite the first message, so that whoever reads the sealed log finds a hole."""
    path = sealed.log.root / "commitlog" / file_name(0)
    end = sealed.log.plain.spans[0][1]
    path.write_bytes(bytes(end) + path.read_bytes()[end:])
    sealed.hide_changes()


def test_what_is_sealed_is_copied(sealed: Sealed) -> None:
    """Files beyond the seal are damaged, and stray units stand where no message has one; the seal
    goes on to hold for the new output, and a run continues there."""
    before = derived(sealed)
    position = read_watermark(sealed.output.state)
    damage_log(sealed)
    for kind in (*QUEUES, "index"):
        for path in sealed.unsealed(kind)[:1]:
            path.write_bytes(bytes(path.stat().st_size))
    stray = UNIT.pack(sealed.end + 1, 10, 7)
    for path in sealed.output.files()["consumequeue"]:
        data = path.read_bytes()
        if any(data) and not any(data[-20:]):
            # a file of another length, which is that of no file of the new output
            path.write_bytes(data[:-20] + stray + bytes(40))
    first = min(sealed.output.files()["index"])
    first.write_bytes(first.read_bytes() + bytes(20))
    done = build(sealed)
    assert done.seal_end == sealed.end
    assert set(done.comparison.compared) == {*QUEUES, "index"}
    after = derived(sealed)
    assert (after[0], after[1], sorted(after[2])) == (before[0], before[1], sorted(before[2]))
    found = read_watermark(sealed.output.state)
    assert position and found
    assert (found.store_id, found.end_offset) == (position.store_id, position.end_offset)
    assert sealed.output.verify(sealed=True).seal_end == sealed.end
    whole = rebuild(config_of(sealed), threading.Event(), dry_run=True)
    assert whole.comparison.differences
    sealed.log.grow(10)
    assert run_dispatcher(config_of(sealed), threading.Event()).batches == 1
    assert sealed.output.verify(sealed=True).differences == ()


@pytest.mark.parametrize(("kind", "at"), [("consumequeue", 3), ("index", 100), ("index", 43)])
def test_everything_is_built_where_a_sealed_part_differs(
    sealed: Sealed, kind: str, at: int
) -> None:
    """A unit, an entry, a slot; nothing that was copied before is part of the result."""
    before = derived(sealed)
    first = min(sealed.output.files()[kind])
    data = bytearray(first.read_bytes())
    data[at] ^= 1
    first.write_bytes(data)
    done = build(sealed)
    assert done.seal_end is None
    assert done.comparison.differences
    assert derived(sealed)[:2] == before[:2]
    assert sealed.output.verify().differences == ()
    assert not sealed.path.exists()
    assert not (sealed.output.root / ".reput-rebuild").exists()


def test_everything_is_built_where_a_file_of_blanks_is_gone(ram_path: Path) -> None:
    """No message has a unit in it, but it stands between those of messages that the log has."""
    store = BorderStore(ram_path)
    for queue_offset in (0, 30):
        store.append(queue_offset)
    store.append_up_to(2 * FILE_SIZE)
    store.write()
    config = configured(store.root, store.output.root, once=True, on_queue_gap=BLANK)
    run_dispatcher(config, threading.Event())
    assert store.output.verify(sealed=True).differences == ()
    before = tree(store.output.root / "consumequeue")
    files = store.output.files()["consumequeue"]
    next(path for path in files if path.read_bytes() == PRE_BLANK * 5).unlink()
    assert store.check()[0] != ()
    assert rebuild(config, threading.Event(), sealed=True).seal_end is None
    assert tree(store.output.root / "consumequeue") == before


def test_a_stray_unit_in_a_copy_is_cleared(ram_path: Path) -> None:
    """In a queue that gets no message beyond the seal, so that nothing is written over it. No file
    stays open."""
    store = BorderStore(ram_path)
    store.append(light=b"INNER_MULTI_DISPATCH\x01L\x02INNER_MULTI_QUEUE_OFFSET\x010\x02")
    store.append_up_to(2 * FILE_SIZE)
    store.write()
    store.output.start()
    assert store.output.verify(sealed=True).differences == ()
    path = store.output.root / "consumequeue" / "L" / "0" / file_name(0)
    before = path.read_bytes()
    path.write_bytes(before[:-20] + UNIT.pack(store.plain.end, 10, 7))
    config = DispatcherConfig(store.root, store.output.root, once=True)
    assert rebuild(config, threading.Event(), sealed=True).seal_end == 2 * FILE_SIZE
    assert path.read_bytes() == before
    assert open_files(store.output.root) == 0


@pytest.mark.parametrize("kind", ["consumequeue", "index"])
def test_one_kind_alone(sealed: Sealed, kind: str) -> None:
    """The other ones, the positions and the seal stay."""
    before = derived(sealed)
    damage_log(sealed)
    path = sealed.unsealed(kind)[0]
    path.write_bytes(bytes(path.stat().st_size))
    done = build(sealed, kinds=[kind])
    assert done.seal_end == sealed.end
    assert derived(sealed)[:2] == before[:2]
    assert sealed.output.verify(sealed=True).seal_end == sealed.end


def test_an_index_that_began_later_is_not_copied(ram_path: Path, seed: int) -> None:
    """A whole rebuild reaches back to the log's first message, so this one does."""
    sealed = Sealed(ram_path, seed, index=False)
    run = configured(sealed.log.root, sealed.output.root, once=True, index=True)
    run_dispatcher(run, threading.Event())
    sealed.log.grow(40)
    run_dispatcher(run, threading.Event())
    assert sealed.output.verify(sealed=True).differences == ()
    late = sealed.output.index()
    assert build(sealed, kinds=["index"]).seal_end is None
    assert len(sealed.output.index()) > len(late)
    assert sealed.output.verify().differences == ()


def test_a_stop_or_an_error_leaves_the_old(sealed: Sealed, monkeypatch: pytest.MonkeyPatch) -> None:
    """While parts are copied, and afterwards."""
    before = tree(sealed.output.root / "consumequeue")
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(StoreError, match="nothing was replaced"):
        rebuild(config_of(sealed), stopped, sealed=True)
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("pwrite:3=EIO"))
        with pytest.raises(OutputError):
            build(sealed)
    assert tree(sealed.output.root / "consumequeue") == before
    assert sealed.output.verify(sealed=True).seal_end == sealed.end
