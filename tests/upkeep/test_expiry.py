"""``reput expire`` on real stores whose log lost files at its front.

RocketMQ's own units, laid out in small files, say what must stay; the rule's model is in
``tests/store/test_retention``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.watermark import WatermarkFile
from reput.store import fsops
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import CommitLogError, OwnershipError, UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import QueueKey
from reput.store.state.watermark import Watermark
from reput.upkeep.expiry import expire
from tests.support.cli import Call, json_object
from tests.support.golden import relaid_queues, tree
from tests.support.outputs import STORE_ID, Output, QueueLog, Setup
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder
from tests.support.wire import file_name, read_log

FILE_SIZE = 200


def built(store: Path, output: Path) -> tuple[StoreSettings, int]:
    """A golden log dispatched into files of ten units; settings and the log's end."""
    settings = replace(read_store_settings(store), mapped_file_size_consume_queue=FILE_SIZE)
    log = CommitLog(settings.commit_log_directories)
    last, data = read_log(store / "commitlog")[-1]
    setup = Setup(log, output, FILE_SIZE, {}, settings.message_delay_levels_ms)
    running = Output(setup)
    running.run(last + len(data))
    running.close()
    return settings, last + len(data)


@pytest.mark.parametrize("name", ["plain", "mixed", "wide"])
def test_what_the_log_lost_goes_and_nothing_else(
    golden: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """File by file from the log's front: a dry run changes nothing, then RocketMQ's rule."""
    store, output = golden(name), tmp_path / "output"
    settings, _ = built(store, output)
    assert tree(output / "consumequeue") == relaid_queues(store, FILE_SIZE)
    removed = 0
    for path in sorted((store / "commitlog").iterdir())[:-1]:
        path.unlink()
        before = tree(output)
        plan = expire(settings, output, apply=False)
        assert tree(output) == before
        assert expire(settings, output, apply=True) == plan
        assert tree(output / "consumequeue") == relaid_queues(store, FILE_SIZE, plan.log_min_offset)
        assert expire(settings, output, apply=False).files == ()
        removed += len(plan.files)
    assert removed > 100


def with_unused_queue(root: Path) -> tuple[StoreSettings, Setup]:
    """A log that has lost its first file, and with it all messages of topic Old."""
    log = QueueLog(FILE_SIZE)
    for topic in ("Old", "rmq_sys_old"):
        for queue_offset in range(25):
            log.append(queue_offset, 0, topic)
    for queue_offset in range(100):
        log.append(queue_offset, 0, "New")
    setup = log.setup(root, FILE_SIZE)
    output = Output(setup)
    output.run(log.plain.end)
    output.close()
    settings = StoreSettings(
        root, setup.log.segments.directories, mapped_file_size_consume_queue=FILE_SIZE
    )
    (root / "commitlog" / file_name(0)).unlink()
    return settings, setup


def test_unused_queues_go_only_where_asked(tmp_path: Path) -> None:
    """They are listed; their last files and directories go with --remove-unused."""
    settings, setup = with_unused_queue(tmp_path)
    assert len(expire(settings, setup.root, apply=True).unused_queues) == 1
    assert f"Old/0/{file_name(400)}" in setup.queues()
    gone = expire(settings, setup.root, apply=True, remove_unused=True)
    assert (gone.files, gone.unused_queues) == ((), (QueueKey("Old", 0),))
    assert not (setup.root / "consumequeue" / "Old").exists()
    assert f"rmq_sys_old/0/{file_name(400)}" in setup.queues()
    assert expire(settings, setup.root, apply=False).unused_queues == ()


def test_what_a_killed_removal_left_unsynced_is_durable_after_the_next(
    golden: Callable[[str], Path], ram_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the last file and the sync of its directory; then the power fails."""
    store, output = golden("plain"), ram_path / "output"
    settings, _ = built(store, output)
    min((store / "commitlog").iterdir()).unlink()
    last = expire(settings, output, apply=False).files[-1].path
    sync = fsops.sync_directory

    def killed(directory: Path) -> None:
        if directory == last.parent and not last.exists():
            raise KeyboardInterrupt
        sync(directory)

    with Recorder(output) as recorder:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fsops, "sync_directory", killed)
            expire(settings, output, apply=True)
        assert expire(settings, output, apply=True).files == ()
    disk = Disk.after(recorder).image([]).tree
    assert str(last.relative_to(output)) not in disk


def test_what_is_refused(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A broker's own queues, a running dispatcher, another log: nothing is removed."""
    store, output = golden("plain"), tmp_path / "output"
    with pytest.raises(UsageError, match="no watermark"):
        expire(read_store_settings(store), store, apply=True)
    assert not (store / "reput").exists()
    settings, end = built(store, output)
    first = sorted((store / "commitlog").iterdir())[0]
    first.unlink()
    before = tree(output / "consumequeue")
    with Ownership(output):
        assert expire(settings, output, apply=False).files
        with pytest.raises(OwnershipError, match="another dispatcher"):
            expire(settings, output, apply=True)
    last = read_log(store / "commitlog")[-1][0]
    for watermark, message in (
        (
            Watermark(STORE_ID, end, last_record_offset=last, last_record_crc=1),
            "run the dispatcher",
        ),
        (Watermark(STORE_ID, 1000), "begins at 262144, beyond the watermark 1000"),
    ):
        file = WatermarkFile(output / "reput")
        file.advance(watermark)
        file.close()
        with pytest.raises(CommitLogError, match=message):
            expire(settings, output, apply=True)
    assert tree(output / "consumequeue") == before


def test_the_command(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """Dry by default, JSON for machines, one line for people."""
    store, output = golden("plain"), tmp_path / "output"
    built(store, output)
    first = sorted((store / "commitlog").iterdir())[0]
    first.unlink()
    arguments = ("expire", store, "--output", output, "--consume-queue-file-size", FILE_SIZE)
    before = tree(output)
    planned = json_object(call(*arguments, "--json"))
    assert (planned["applied"], planned["log_min_offset"]) == (False, 262144)
    assert planned["bytes"] == len(planned["files"]) * FILE_SIZE > 0
    shown = call(*arguments).stdout.splitlines()
    assert (shown[0], shown[-1].rpartition("; ")[2]) == (
        "to remove", "nothing was removed, give --apply",
    )  # fmt: skip
    assert tree(output) == before
    done = call(*arguments, "--apply")
    assert done.returncode == 0, done.stderr
    files, size = len(planned["files"]), planned["bytes"]
    assert 1024 < size < 1 << 20
    said = f"{files:,} files, {size / 1024:.1f} KiB, 0 unused queues; the log begins at 262144"
    *shown, line = done.stdout.splitlines()
    assert (shown[0], line) == ("removed", said)
    assert (
        call(*arguments).stdout
        == said.replace(f"{files:,}", "0").replace(f"{size / 1024:.1f} KiB", "0 B") + "\n"
    )
    assert tree(output / "consumequeue") == relaid_queues(store, FILE_SIZE, 262144)
    assert call(*arguments, "--remove-unused").returncode == 2


@pytest.mark.parametrize(
    ("words", "fate"),
    [
        ((), "would go with --remove-unused"),
        (("--apply",), "kept"),
        (("--apply", "--remove-unused"), "removed"),
    ],
)
def test_the_command_says_what_becomes_of_an_unused_queue(
    tmp_path: Path, call: Call, words: tuple[str, ...], fate: str
) -> None:
    _, setup = with_unused_queue(tmp_path)
    arguments = ("--output", setup.root, "--consume-queue-file-size", FILE_SIZE, *words)
    done = call("expire", tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "unused queue: " in line)
    assert line.rpartition("unused queue: ")[2].strip() == fate
    assert (setup.root / "consumequeue" / "Old" / "0").exists() == (fate != "removed")
