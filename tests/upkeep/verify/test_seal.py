"""A verification of a sealed output reads only what is new of the log, and answers as a full one.

The full comparison, which knows nothing of seals, says what the sealed one must say: of damage of
every kind in every derived file, and wherever a seal does not hold.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from reput.store.state.ledger import LedgerEntry
from reput.streaming.progress import ReadProgress
from reput.upkeep.expiry import expire
from reput.upkeep.verify.logcomparison import LogComparison
from reput.upkeep.verify.run import verify
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.file_damage import damage_file
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.support.sealed import Sealed

DAMAGES = 60


def test_only_what_is_new_is_read(ram_path: Path, seed: int) -> None:
    """A sealed log file of another content and the same identity goes unnoticed, so it was not
    read; the full comparison notices it."""
    sealed = Sealed(ram_path, seed)
    assert sealed.read_from() == sealed.end
    min((sealed.log.root / "commitlog").iterdir()).write_bytes(bytes(FILE_SIZE))
    sealed.hide_changes()
    assert sealed.output.verify(sealed=True).differences == ()
    assert json.loads(sealed.path.read_bytes())["end"] >= sealed.end
    assert [one.physical_offset for one in sealed.output.verify().damage] == [0]


def test_progress_is_that_of_what_is_read(ram_path: Path, seed: int) -> None:
    """The messages after the end of the seal, counted once each, whatever queues they go into."""
    sealed = Sealed(ram_path, seed)
    output, log, parts = sealed.output, sealed.log, []

    def show(progress: ReadProgress) -> None:
        counted = sum(messages for *_, messages in parts)
        messages = progress.counts.messages - counted
        assert progress.log_end is not None
        parts.append((progress.start_offset, progress.position, progress.log_end, messages))

    verify(output.settings(), output.root, sealed=True, show=show)
    assert {(start, end) for start, _, end, _ in parts} == {(sealed.end, log.plain.end)}
    positions = [position for _, position, _, _ in parts]
    assert positions == sorted(positions)
    queues = zip(log.plain.spans, log.queues, strict=True)
    read = sum(bool(found) for (start, _), found in queues if start >= sealed.end)
    assert sum(messages for *_, messages in parts) == read


def test_each_seal_reaches_as_far_as_full_log_files_do(ram_path: Path, seed: int) -> None:
    """Run by run: each comparison reads from the end of the seal before it."""
    sealed, rng = Sealed(ram_path, seed, grown=0), random.Random(seed)
    end = sealed.end
    for _ in range(6):
        sealed.log.grow(rng.choice((0, 1, 10, 50)))
        sealed.output.start()
        found = sealed.output.verify(sealed=True)
        assert (found.differences, found.seal_end) == ((), end)
        end = json.loads(sealed.path.read_bytes())["end"]
        assert end == sealed.log.plain.end // FILE_SIZE * FILE_SIZE
    assert sealed.output.verify().differences == ()


def test_damage_is_found_as_by_a_full_comparison(ram_path: Path, seed: int) -> None:
    """In any derived file, of any kind, before and after the end of the seal."""
    sealed, rng = Sealed(ram_path, seed), random.Random(seed)
    output, kept, found = sealed.output, ram_path / "kept", 0
    output.keep(kept)
    for _ in range(DAMAGES):
        files = [*chain(*output.files().values()), output.state / "quarantine.jsonl"]
        path = rng.choice(files)
        if rng.random() < 0.2:
            # a file of another place, which is sound in itself
            path = path.with_name(rng.choice(files).name)
            path.write_bytes(rng.choice(files).read_bytes())
            what = "copy"
        else:
            what = damage_file(rng, path)
        by_seal, by_log = sealed.answers()
        if (output.state / "watermark").exists():
            assert by_seal == by_log, f"{what} {path}"
        else:
            assert isinstance(by_seal, tuple)
            assert by_seal[0] is UsageError
        found += by_log != ((), None)
        output.restore(kept)
    assert found > DAMAGES / 2


def test_what_changes_after_it_was_compared_is_not_sealed(
    ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit beyond the old seal is overwritten when the comparison has just ended: the next one
    finds it."""
    sealed = Sealed(ram_path, seed)
    inner = LogComparison.compare

    def compare(compared: LogComparison, show: Callable[[ReadProgress], None]) -> None:
        inner(compared, show)
        path = sealed.unsealed("consumequeue")[0]
        data = path.read_bytes()
        path.write_bytes(data[:12] + b"tagscode" + data[20:])

    with monkeypatch.context() as patch:
        patch.setattr(LogComparison, "compare", compare)
        assert sealed.output.verify(sealed=True).differences == ()
    sealed.data = sealed.path.read_bytes()
    by_seal, by_log = sealed.answers()
    assert by_seal == by_log != ((), None)


def touched_log(sealed: Sealed) -> None:
    os.utime(min((sealed.log.root / "commitlog").iterdir()))


def copied_log(sealed: Sealed) -> None:
    log = sealed.log.root / "commitlog"
    shutil.copytree(log, log.with_name("copy"))
    shutil.rmtree(log)
    log.with_name("copy").rename(log)


def another_setting(sealed: Sealed) -> None:
    with (sealed.log.root / "broker.conf").open("a") as conf:
        conf.write("messageDelayLevel=1s 3s\n")


def a_line_about_a_sealed_message(sealed: Sealed) -> None:
    line = LedgerEntry(0, 10, "queue_offset_gap", "A", 0, 7).to_json()
    with (sealed.output.state / "quarantine.jsonl").open("a") as ledger:
        ledger.write(line + "\n")


def a_queue_of_a_sealed_message(sealed: Sealed) -> None:
    topic = sealed.output.root / "consumequeue" / "A"
    (topic / "7").mkdir()
    shutil.copy(min((topic / "0").iterdir()), topic / "7")


def a_directory_in_the_place_of_a_file(sealed: Sealed) -> None:
    path = min(sealed.output.files()["index"])
    path.unlink()
    path.mkdir()


def a_file_in_the_place_of_a_directory(sealed: Sealed) -> None:
    topic = sealed.output.root / "consumequeue" / "A"
    shutil.rmtree(topic)
    topic.touch()


def a_flipped_bit_in_the_seal(sealed: Sealed) -> None:
    data = bytearray(sealed.data)
    data[random.Random(str(sealed.data)).randrange(len(data))] ^= 1
    sealed.path.write_bytes(data)


def no_seal(sealed: Sealed) -> None:
    sealed.path.unlink()


@pytest.mark.parametrize(
    "change",
    [
        touched_log, copied_log, another_setting, a_line_about_a_sealed_message,
        a_queue_of_a_sealed_message, a_directory_in_the_place_of_a_file,
        a_file_in_the_place_of_a_directory, a_flipped_bit_in_the_seal, no_seal,
    ],
)  # fmt: skip
def test_everything_is_read_where_the_seal_does_not_hold(
    ram_path: Path, seed: int, change: Callable[[Sealed], None]
) -> None:
    """The answer is that of a full comparison; a new seal comes with one that finds nothing."""
    sealed = Sealed(ram_path, seed)
    change(sealed)
    before = sealed.path.read_bytes() if sealed.path.exists() else None
    found = sealed.output.verify(sealed=True)
    after = sealed.path.read_bytes() if sealed.path.exists() else None
    full = sealed.output.verify()
    assert found == full
    assert found.seal_end == 0
    assert (after == before) == bool(full.differences)
    if not full.differences:
        assert sealed.output.verify(sealed=True).seal_end > 0


def test_what_a_rewound_output_lacks_is_not_sealed(ram_path: Path, seed: int) -> None:
    """A repair has lowered the watermark below the end of the seal; the next run builds anew from
    there, and its index files have new names."""
    sealed = Sealed(ram_path, seed)
    path = min((sealed.output.root / "consumequeue" / "A").rglob("0*0"))
    path.write_bytes(b"damaged!" + path.read_bytes()[8:])
    assert len(sealed.output.verify(repair=True, sealed=True).differences) == 1
    found = sealed.output.verify(sealed=True)
    assert (found.differences, found.seal_end) == ((), 0)
    sealed.output.start()
    found = sealed.output.verify(sealed=True)
    assert (found.differences, found.log_end) == ((), sealed.log.plain.end)
    assert sealed.output.verify(sealed=True).seal_end >= sealed.end


@pytest.mark.parametrize("expired", [False, True])
def test_a_seal_holds_where_the_log_loses_its_front(
    ram_path: Path, seed: int, *, expired: bool
) -> None:
    """File by file, with the units of lost messages and without them, up to the end of the
    seal."""
    sealed = Sealed(ram_path, seed)
    output = sealed.output
    log = sorted((sealed.log.root / "commitlog").iterdir())
    for path in log[: sealed.end // FILE_SIZE]:
        path.unlink()
        if expired:
            expire(read_store_settings(sealed.log.root), output.root, apply=True)
        assert output.verify().differences == ()
        assert sealed.read_from() == sealed.end
    parts = {part[0] for part in json.loads(sealed.data)["parts"]}
    assert all((output.root / part).exists() for part in parts) != expired


def test_a_file_that_the_log_still_needs_must_not_be_gone(ram_path: Path, seed: int) -> None:
    """Each sealed file of a queue or index, one at a time, after the log lost its first file."""
    sealed = Sealed(ram_path, seed)
    (sealed.log.root / "commitlog" / "0".zfill(20)).unlink()
    kept, found = ram_path / "kept", 0
    sealed.output.keep(kept)
    for name in sorted({part[0] for part in json.loads(sealed.data)["parts"]}):
        (sealed.output.root / name).unlink()
        by_seal, by_log = sealed.answers()
        assert by_seal == by_log, name
        found += by_log != ((), None)
        sealed.output.restore(kept)
    assert found


def test_what_cannot_be_sealed_is_refused(ram_path: Path, seed: int, golden: Any) -> None:
    """Queues of a broker, and exts, also those that are left from another setting; a log without a
    full file is compared and not sealed."""
    store = golden("plain")
    with pytest.raises(UsageError, match="no watermark"):
        DerivedOutput(store, store).verify(sealed=True)
    log = GrownLog(ram_path / "ext", random.Random(seed), ext=True)
    log.grow(40)
    output = DerivedOutput(log.root, ram_path / "output")
    output.start()
    with pytest.raises(UsageError, match="consumequeue_ext"):
        output.verify(sealed=True)
    log = GrownLog(ram_path / "short", random.Random(seed), ext=False)
    log.grow(3)
    output = DerivedOutput(log.root, ram_path / "short-output")
    output.start()
    assert output.verify(sealed=True).differences == ()
    assert not (output.state / "seal.json").exists()
    (output.root / "consumequeue_ext").mkdir()
    with pytest.raises(UsageError, match="consumequeue_ext"):
        output.verify(sealed=True)


def test_the_command_says_what_was_sealed(ram_path: Path, seed: int, call: Call) -> None:
    """A second line, and the fields of JSON."""
    sealed = Sealed(ram_path, seed)
    arguments = ("verify", sealed.log.root, "--output", sealed.output.root, "--sealed")
    document = json.loads(call(*arguments, "--json").stdout)
    assert (document["log_start"], document["seal_end"]) == (0, sealed.end)
    assert document["differences"] == []
    end = json.loads(sealed.path.read_bytes())["end"]
    assert f"what follows from [0, {end}) was compared by checksums" in call(*arguments).stdout
