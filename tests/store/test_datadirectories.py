"""No file is written into a directory from which a broker loads its own files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.datadirectories import check_target
from reput.store.errors import UsageError


@pytest.mark.parametrize(
    "place",
    [
        "commitlog", "commitlog/x", "consumequeue", "consumequeue/TopicA/0", "consumequeue_ext",
        "batchconsumequeue/deep/er", "index", "config/backup", "timerlog", "compaction/x",
    ],
)  # fmt: skip
def test_another_store_is_known_by_its_folders(golden: Callable[[str], Path], place: str) -> None:
    """A broker's own store, of which the call says nothing; directories that are missing too."""
    store = golden("plain")
    before = sorted(store.rglob("*"))
    with pytest.raises(UsageError, match="holds the data of a store"):
        check_target(store / place)
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize("sign", ["commitlog", "consumequeue", "broker.conf", "reput/watermark"])
def test_each_sign_of_a_store_alone_protects_its_data(tmp_path: Path, sign: str) -> None:
    """Beside any directory of a store, which may be empty or missing; a file in a directory's
    place, or the other way around, is none."""
    names = (
        "commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config",
        "timerlog", "compaction", "transaction",
    )  # fmt: skip
    (tmp_path / sign).parent.mkdir(exist_ok=True)
    is_file = "." in sign or "/" in sign
    for is_sound in (False, True):
        if is_file == is_sound:
            (tmp_path / sign).touch()
        else:
            (tmp_path / sign).mkdir()
        for name in names:
            if name == sign:
                continue
            for target in (tmp_path / name, tmp_path / name / "deep" / "er"):
                if is_sound:
                    with pytest.raises(UsageError, match="holds the data of a store"):
                        check_target(target)
                else:
                    check_target(target)
        check_target(tmp_path / "output")
        if not is_sound:
            (tmp_path / sign).unlink() if not is_file else (tmp_path / sign).rmdir()


def test_directories_of_such_names_elsewhere_are_free(tmp_path: Path) -> None:
    """A disk that is called commitlog, a home directory with a config, the store's own root."""
    for free in ("commitlog/stores/a", "index", "config/x/y", "transaction"):
        check_target(tmp_path / free)
    (tmp_path / "commitlog" / "stores" / "a" / "commitlog").mkdir(parents=True)
    check_target(tmp_path / "commitlog" / "stores" / "a")


def test_a_file_is_no_place(tmp_path: Path) -> None:
    """Nor is anything below it, whether it is named itself or by a link."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for target in ("file", "file/deep/er", "link", "link/x"):
        with pytest.raises(UsageError, match=f"{tmp_path}/file is not a directory; give another"):
            check_target(tmp_path / target)


def test_a_store_around_a_store_is_free(golden: Callable[[str], Path]) -> None:
    """Into the store itself and beside its directories is where outputs usually are."""
    store = golden("plain")
    settings = read_store_settings(store)
    for free in (store, store / "output", store / "reput" / "spark", store.parent):
        check_target(free, settings, store)


def test_links_are_followed(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A link to the log, a path through a link, and one with dots in it."""
    store, link = golden("plain"), tmp_path / "link"
    link.symlink_to(store / "commitlog")
    for target in (link, link / "x", store / "output" / ".." / "commitlog"):
        with pytest.raises(UsageError, match="holds the data of a store"):
            check_target(target)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="cannot be used as a path"):
        check_target(loop)


def test_log_directories_of_any_name(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """storePathCommitLog names two; one is empty yet, the other shows what it is by its files."""
    log, empty, root = tmp_path / "disk1" / "a", tmp_path / "disk2" / "b", tmp_path / "store"
    for directory in (log.parent, empty, root):
        directory.mkdir(parents=True)
    (golden("plain") / "commitlog").rename(log)
    (root / "broker.conf").write_text(f"storePathCommitLog={log},{empty}\n")
    settings = read_store_settings(root)
    for target in (log, log / "x", empty, empty / "x", root / "commitlog", root / "index"):
        with pytest.raises(UsageError, match="holds the data of a store"):
            check_target(target, settings)
    with pytest.raises(UsageError, match="holds the data of a store"):
        check_target(log / "x")
    check_target(tmp_path / "disk1", settings)


def test_an_output_whose_queues_would_lie_around_the_log(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """A rebuild would move the log away with the directory, a topic might be named commitlog."""
    for name in ("consumequeue", "reput"):
        around = tmp_path / f"around-{name}"
        around.mkdir()
        store = golden("plain").rename(around / name)
        with pytest.raises(UsageError, match=f"around the commitlog .*its directory {name}"):
            check_target(around, read_store_settings(store))


def test_an_output_that_is_made_first(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A data directory of the output at hand is refused before it exists."""
    settings, output = read_store_settings(golden("plain")), tmp_path / "output"
    with pytest.raises(UsageError, match="holds the data of a store"):
        check_target(output / "consumequeue" / "table", settings, output)
    check_target(output / "table", settings, output)
