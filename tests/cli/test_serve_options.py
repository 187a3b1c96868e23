"""Options of ``serve`` and ``run``: the stores and runs that they make, without any of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from reput.cli import render, serve, severalstores
from reput.serving.config import ServerConfig
from reput.serving.stores import ServedStore
from reput.store.errors import NotReadyError, StoreError
from reput.streaming.config import DispatcherConfig
from tests.cli.test_errors import assert_one_line
from tests.readers.stores import LOG_FILE_SIZE, QUEUE_FILE_SIZE, SmallStore
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput

Served = list[tuple[ServerConfig, Sequence[ServedStore]]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """The configuration and the stores of each server that a command would start; what is not
    there yet is an error."""
    found: Served = []

    async def serving(config: ServerConfig, stores: Sequence[ServedStore]) -> None:
        found.append((config, stores))

    def at_once(work: Callable[[], object]) -> object:
        return work()

    monkeypatch.setattr(serve, "_serve", serving)
    monkeypatch.setattr(render, "when_ready", at_once)
    return found


def store(root: Path, name: str = "") -> Path:
    """A broker's store with one message."""
    small = SmallStore(root)
    small.append()
    small.write()
    if name:
        with (root / "broker.conf").open("a") as conf:
            conf.write(f"brokerName={name}\n")
    return root


def outputs(served: Served) -> list[Path]:
    ((_, stores),) = served
    return [one.output for one in stores]


def test_the_only_store_has_the_output_that_is_given(
    tmp_path: Path, call: Call, served: Served
) -> None:
    """Its consumers would begin again in another one."""
    root = store(tmp_path / "a", "named")
    output = DerivedOutput(root, tmp_path / "out")
    output.start()
    assert call("serve", root, "--output", output.root).returncode == 0
    assert outputs(served) == [output.root]
    served.clear()
    assert call("serve", root).returncode == 0
    assert outputs(served) == [root]


@pytest.mark.parametrize("names", [("named",), ("named", "other")])
def test_a_store_of_a_glob_has_an_output_of_its_own(
    tmp_path: Path, call: Call, served: Served, names: tuple[str, ...]
) -> None:
    """By its broker's name, however many there are at the moment; so has each of several."""
    for name in names:
        root = store(tmp_path / "stores" / f"of-{name}", name)
        shutil.copytree(root / "consumequeue", tmp_path / "out" / name / "consumequeue")
    words = ("--output", tmp_path / "out")
    assert call("serve", "--stores", tmp_path / "stores" / "*", *words).returncode == 0
    assert outputs(served) == [tmp_path / "out" / name for name in names]
    if len(names) > 1:
        served.clear()
        roots = [tmp_path / "stores" / f"of-{name}" for name in names]
        assert call("serve", *roots, *words).returncode == 0
        assert outputs(served) == [tmp_path / "out" / name for name in names]


def test_a_property_file_is_for_one_store(tmp_path: Path, call: Call, served: Served) -> None:
    """A glob may find but one now."""
    conf = store(tmp_path / "stores" / "a") / "broker.conf"
    for words in (
        ("--stores", tmp_path / "stores" / "*"),
        (tmp_path / "stores" / "a", tmp_path / "stores" / "a"),
    ):
        done = call("serve", *words, "--broker-conf", conf)
        assert_one_line(done, 2, "--broker-conf is for one store")
    assert served == []
    other = tmp_path / "other.conf"
    other.write_text(conf.read_text() + "brokerName=elsewhere\n")
    assert call("serve", tmp_path / "stores" / "a", "--broker-conf", other).returncode == 0
    ((_, (one,)),) = served
    assert one.identity.name == "elsewhere"


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_an_output_that_is_not_there_yet_is_waited_for(tmp_path: Path, place: str) -> None:
    """A server that is started before the dispatcher would serve no messages, or end."""
    root, output = store(tmp_path / "a"), tmp_path / place
    (tmp_path / "empty").mkdir()
    built, files = DerivedOutput(root, output), (None, None, None)
    with pytest.raises(NotReadyError, match=str(output)):
        serve._served([root], output, False, files)
    built.start()
    (one,) = serve._served([root], output, False, files)
    assert one.output == output


def test_sizes_of_files_may_be_given(tmp_path: Path, call: Call, served: Served) -> None:
    """A store without its property file; clients come to this machine alone."""
    root = store(tmp_path / "a")
    (root / "broker.conf").unlink()
    sizes = ("--commitlog-file-size", LOG_FILE_SIZE, "--consume-queue-file-size", QUEUE_FILE_SIZE)
    assert call("serve", root, *sizes).returncode == 0
    ((config, (one,)),) = served
    assert (config.host, config.port) == ("127.0.0.1", 9876)
    assert one.settings.mapped_file_size_commit_log == LOG_FILE_SIZE
    assert one.settings.mapped_file_size_consume_queue == QUEUE_FILE_SIZE


def test_several_stores_share_the_memory_of_one(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All may catch up at once. Each has its own root, output and table, and what else is given."""
    made: list[Callable[[Path, Path, int], DispatcherConfig]] = []

    def supervisor(_several: object, configured: Any, *_: object, **_options: object) -> None:
        made.append(configured)
        raise StoreError("nothing is run here")

    monkeypatch.setattr(severalstores, "supervisor", supervisor)
    several = ("--stores", tmp_path / "*", "--outputs", tmp_path / "out", "--once")
    options = ("--max-bytes-per-trigger", "12m", "--delta", tmp_path / "t", "--verify-crc")
    assert_one_line(call("run", *several, *options), 1, "nothing is run here")
    (configured,) = made
    for count, share in ((1, 12 << 20), (3, 4 << 20), (1 << 40, 1)):
        config = configured(tmp_path / "a", tmp_path / "out" / "a", count)
        assert config.max_bytes_per_trigger == share
        assert (config.store, config.output) == (tmp_path / "a", tmp_path / "out" / "a")
        assert [one.description for one in config.followers] == [f"{tmp_path}/t/a"]
        assert (config.once, config.flags) == (True, {"verify_crc": True})
