"""An error's advice for a store or an output in a wrong state is followed in that state."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from reput.store.log import segments
from tests.cli.test_advised_options import OUTPUT, STORE, Words, place
from tests.readers.stores import SmallStore
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.several_paths import spread

__all__ = ["place"]


def _set(store: Path, lines: str) -> None:
    """Add settings to the store's property file."""
    with (store / "broker.conf").open("a") as conf:
        conf.write(lines)


def _replace(store: Path, pattern: str, text: str) -> Words:
    """Correct settings in the store's property file."""
    conf = store / "broker.conf"
    conf.write_text(re.sub(pattern, text, conf.read_text()))
    return ()


def _moved(store: Path) -> str:
    _set(store, "storePathCommitLog=/nowhere/commitlog\n")
    return "correct the file or pass another with --broker-conf"


def _correct(store: Path) -> Words:
    return _replace(store, "storePathCommitLog=.*", f"storePathCommitLog={store / 'commitlog'}")


def _another(store: Path) -> Words:
    conf, other = store / "broker.conf", store.with_name("other.conf")
    wrong = conf.read_text()
    _correct(store)
    conf.rename(other)
    conf.write_text(wrong)
    return ("--broker-conf", other)


def _without_comma(store: Path) -> str:
    (store / "archive").mkdir()
    log = f"storePathCommitLog={store / 'commitlog'}\n"
    _set(store, f"{log}readOnlyCommitLogStorePaths={store / 'archive'}\n")
    return (
        "end storePathCommitLog with one to have both read, or take readOnlyCommitLogStorePaths out"
    )


def _with_comma(store: Path) -> Words:
    return _replace(store, "(storePathCommitLog=.*)", r"\1,")


def _without_archive(store: Path) -> Words:
    return _replace(store, "readOnlyCommitLogStorePaths=.*\n", "")


def _literal(store: Path) -> str:
    _set(store, "storePathCommitLog=nowhere/commitlog\n")
    return "write whole paths, with commas and no spaces between, there or in another file"


def _overlap(store: Path) -> str:
    log = store / "commitlog"
    shutil.copy(min(log.iterdir()), log / f"{1000:020}")
    return "remove the one that does not belong to this log"


def _remove(store: Path) -> Words:
    (store / "commitlog" / f"{1000:020}").unlink()
    return ()


def _other_size(store: Path) -> str:
    _set(store, "mappedFileSizeCommitLog=8192\n")
    return "set mappedFileSizeCommitLog (broker.conf or --commitlog-file-size) to the size"


def _size_by_option(store: Path) -> Words:
    size = min((store / "commitlog").iterdir()).stat().st_size
    return ("--commitlog-file-size", size)


def _size_by_file(store: Path) -> Words:
    size = min((store / "commitlog").iterdir()).stat().st_size
    return _replace(store, "8192", str(size))


def _torn_offsets(store: Path) -> str:
    offsets = store / "config" / "consumerOffset.json"
    shutil.copy(offsets, f"{offsets}.copy")
    offsets.write_text(offsets.read_text()[:-3])
    return "restore"


def _restore(store: Path) -> Words:
    offsets = store / "config" / "consumerOffset.json"
    shutil.copy(f"{offsets}.copy", offsets)
    return ()


def _copy_of_a_file(store: Path) -> str:
    log, second = store / "commitlog", store / "second"
    shutil.copytree(log, second)
    with min(second.iterdir()).open("r+b") as file:
        file.write(b"x")
    _set(store, f"storePathCommitLog={log},{second}\n")
    return "remove the one that does not belong to this log, or wait until a running copy is comp"


def _remove_copy(store: Path) -> Words:
    min((store / "second").iterdir()).unlink()
    return ()


def _complete_copy(store: Path) -> Words:
    shutil.copytree(store / "commitlog", store / "second", dirs_exist_ok=True)
    return ()


def _no_number(store: Path) -> str:
    _set(store, "mappedFileSizeConsumeQueue=0\n")
    return "it must be a number from "


def _take_out(store: Path) -> Words:
    return _replace(store, "mappedFileSizeConsumeQueue=.*\n\\Z", "")


def _wrong_levels(store: Path) -> str:
    _set(store, "messageDelayLevel=1s  5x\n")
    return "write numbers with s, m, h or d, and one blank between"


def _levels(store: Path) -> Words:
    return _replace(store, "1s  5x", "1s 5m 2h 1d")


def _log_elsewhere(store: Path) -> str:
    (store / "commitlog").rename(store.with_name("log"))
    return "give a store's root, which holds commitlog/, or a property file that states"


def _with_a_log(store: Path) -> Words:
    store.with_name("log").rename(store / "commitlog")
    return ()


def _stated_log(store: Path) -> Words:
    other = store.with_name("other.conf")
    stated = f"storePathCommitLog={store.with_name('log')}\n"
    other.write_text((store / "broker.conf").read_text() + stated)
    return ("--broker-conf", other)


def _write_topics(store: Path, kind: str) -> None:
    topics = {"topicConfigTable": {"Topic": {"attributes": {"queue.type": kind}}}}
    (store / "config" / "topics.json").write_text(json.dumps(topics))


def _no_topics(store: Path) -> str:
    (store / "config" / "topics.json").write_text("{}")
    return "has no topicConfigTable; restore it from the broker's config"


def _wrong_kind(store: Path) -> str:
    _write_topics(store, "RocksDBCQ")
    return "it must be SimpleCQ or BatchCQ"


def _simple(store: Path) -> Words:
    _write_topics(store, "SimpleCQ")
    return ()


def _no_offsets(store: Path) -> str:
    offsets = store / "config" / "consumerOffset.json"
    offsets.rename(f"{offsets}.copy")
    return "copy the file from the broker's store"


def _without_queues(store: Path) -> str:
    shutil.rmtree(store / "consumequeue" / "Topic")
    _write_topics(store, "SimpleCQ")
    return "topic Topic has no queues; --output names another place of them"


def _queues_elsewhere(store: Path) -> Words:
    return ("--output", store.parent / "all" / store.name)


RESET = ("groups", "reset", STORE, "billing", "--topic", "Topic", "--earliest")
STATES: Sequence[tuple[Callable[[Path], str], Sequence[Callable[[Path], Words]], Words]] = (
    (_moved, (_correct, _another), ("status", STORE)),
    (_without_comma, (_with_comma, _without_archive), ("status", STORE)),
    (_literal, (_correct, _another), ("status", STORE)),
    (_overlap, (_remove,), ("status", STORE)),
    (_other_size, (_size_by_option, _size_by_file), ("status", STORE)),
    (_torn_offsets, (_restore,), ("groups", "list", STORE)),
    (_no_offsets, (_restore,), ("groups", "list", STORE)),
    (_without_queues, (_queues_elsewhere,), RESET),
    (_copy_of_a_file, (_remove_copy, _complete_copy), ("status", STORE)),
    (_no_number, (_take_out,), ("status", STORE)),
    (_wrong_levels, (_levels,), ("status", STORE)),
    (_log_elsewhere, (_with_a_log, _stated_log), ("status", STORE)),
    (_no_topics, (_simple,), ("verify", STORE)),
    (_wrong_kind, (_simple,), ("verify", STORE)),
)


@pytest.mark.parametrize(
    ("spoil", "heal", "command"),
    [(spoil, heal, command) for spoil, heals, command in STATES for heal in heals],
)
def test_a_wrong_state(
    place: dict[str, Path],
    call: Call,
    spoil: Callable[[Path], str],
    heal: Callable[[Path], Words],
    command: Words,
) -> None:
    """Each way that the error names makes the same call right."""
    store = place[STORE]
    words = [store if word == STORE else word for word in command]
    advice = spoil(store)
    done = call(*words)
    assert (done.returncode in (1, 2), advice in done.stderr) == (True, True), done.stderr
    done = call(*words, *heal(store))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def damaged(ram_path: Path) -> Path:
    """A store without queues, whose second message is damaged."""
    small = SmallStore(ram_path / "damaged")
    second = [small.append() for _ in range(4)][1]
    store = small.write()
    shutil.rmtree(store / "consumequeue")
    with min((store / "commitlog").iterdir()).open("r+b") as log:
        log.seek(second + 4)
        log.write(b"damaged!")
    return store


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("option", "advice", "others"),
    [
        ("--on-corrupt", "set onCorrupt to quarantine (run: --on-corrupt", ["quarantine"]),
        ("--on-queue-gap", "set --on-queue-gap to rocketmq or blank", ["rocketmq", "blank"]),
    ],
)
def test_a_run_that_stops_at_damage(
    damaged: Path, tmp_path: Path, call: Call, option: str, advice: str, others: Sequence[str]
) -> None:
    """It goes on from there with each value that it names."""
    for value in others:
        run = ("run", damaged, "--output", tmp_path / value, "--once", option)
        done = call(*run, "fail")
        assert (done.returncode, advice in done.stderr) == (1, True), done.stderr
        assert call(*run, value).returncode == 0
        assert call("verify", damaged, "--output", tmp_path / value).returncode == 0


def test_a_read_that_stops_at_damage(damaged: Path, tmp_path: Path, call: Call) -> None:
    """Without the option the rest is exported."""
    done = call("export", damaged, tmp_path / "failed", "--fail-on-data-loss")
    assert (done.returncode, "leave out --fail-on-data-loss" in done.stderr) == (1, True)
    assert call("export", damaged, tmp_path / "exported").returncode == 0


@pytest.mark.usefixtures("spark")
def test_queues_that_are_a_link(place: dict[str, Path], call: Call) -> None:
    """Queues that cannot be replaced are built elsewhere."""
    store, aside = place[STORE], place[STORE].with_name("aside")
    (store / "consumequeue").rename(aside)
    (store / "consumequeue").symlink_to(aside)
    done = call("rebuild", store)
    assert "build into another output with --output DIR" in done.stderr
    assert done.returncode == 2
    assert call("rebuild", store, "--output", store.with_name("new")).returncode == 0


def test_a_record_of_settings_that_cannot_be_read(place: dict[str, Path], call: Call) -> None:
    """It is removed, and the output goes on."""
    path = place[OUTPUT] / "reput" / "built.json"
    path.write_text("{")
    verify = ("verify", place[STORE], "--output", place[OUTPUT])
    done = call(*verify)
    assert (done.returncode, f"cannot read {path}" in done.stderr) == (1, True)
    assert "remove it and call again with the options that the output was built with" in done.stderr
    path.unlink()
    assert call(*verify).returncode == 0


def test_stores_of_one_name(tmp_path: Path, place: dict[str, Path], call: Call) -> None:
    """They would have one output, until links give them names of their own."""
    outputs, links = tmp_path / "outputs", tmp_path / "links"
    links.mkdir()
    for name in ("a", "b"):
        store = shutil.copytree(place[STORE], tmp_path / "stores" / name / "store")
        (links / name).symlink_to(store)
        DerivedOutput(store, outputs / name).start()
    done = call("verify", "--stores", f"{tmp_path}/stores/*/store", "--outputs", outputs)
    assert "let the pattern match symbolic links of different names" in done.stderr
    assert done.returncode == 2
    done = call("verify", "--stores", f"{links}/*", "--outputs", outputs)
    assert (done.returncode, done.stderr) == (0, "")


def test_indexes_of_different_sizes(place: dict[str, Path], call: Call) -> None:
    """Stores whose indexes cannot be compared are compared without them."""
    other = shutil.copytree(place[STORE], place[STORE].with_name("other"))
    conf = other / "broker.conf"
    conf.write_text(conf.read_text().replace("maxHashSlotNum=1", "maxHashSlotNum=2"))
    diff = ("diff", place[STORE], other)
    done = call(*diff)
    assert (done.returncode, "leave the index out with --only" in done.stderr) == (2, True)
    assert call(*diff, "--only", "consumequeue").returncode == 0


def test_indexes_without_their_size(place: dict[str, Path], call: Call) -> None:
    """Neither has a property file, and RocketMQ's default is too large; one is passed instead."""
    pair = [shutil.copytree(place[STORE], place[STORE].with_name(name)) for name in ("a", "b")]
    conf = place[STORE].with_name("passed.conf")
    for root in pair:
        (root / "broker.conf").replace(conf)
    path = min((pair[1] / "index").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = call("diff", *pair)
    advice = "set maxHashSlotNum in a property file and pass it with --broker-conf"
    assert (done.returncode, advice in done.stderr) == (2, True), done.stderr
    assert "maxHashSlotNum=1\n" in conf.read_text()
    done = call("diff", *pair, "--broker-conf", conf)
    assert (done.returncode, done.stderr) == (1, "")
    path.write_bytes((pair[0] / "index" / path.name).read_bytes())
    assert call("diff", *pair, "--broker-conf", conf).returncode == 0


def test_files_that_move_as_often_as_they_are_listed(place: dict[str, Path], call: Call) -> None:
    """From one directory of the log to the other and back, until they have been moved."""
    store, second = place[STORE], place[STORE].with_name("second")
    second.mkdir()
    there, here = spread(store, [second])
    name, listed_once = min(there.iterdir()).name, segments._list_once

    def listed_before_a_move(directories: Sequence[Path]) -> Any:
        nonlocal here, there
        listed = listed_once(directories)
        here, there = there, here
        (here / name).rename(there / name)
        return listed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_list_once", listed_before_a_move)
        done = call("status", store)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.endswith(
        f"{store / 'commitlog'}, {second}; try again when they have been moved\n"
    )
    assert call("status", store).returncode == 0
