"""An output keeps how it was built: no command has to be told again, none may contradict.

Axes: every setting that decides bytes; every command that reads or writes what they decide; kills;
outputs without a record, of RocketMQ or of an older reput. RocketMQ's logs, dispatched without
Spark; what a whole run says is asked of the command line once. Index files are compared by content,
since their names are times.
"""

from __future__ import annotations

import logging
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reput.checkpoints.swap import finish_swap
from reput.cli import app
from reput.store import fsops
from reput.store.config import OnQueueGap, read_store_settings
from reput.store.errors import OutputError, ReputError, StoreError, UsageError
from reput.store.runs.dispatch import DispatchBatch
from reput.store.state.built import read_build_record, settings_of
from reput.upkeep.compare import DIRECTORY_KINDS
from reput.upkeep.rebuild import rebuild
from tests.support.cli import Call
from tests.support.configs import configured
from tests.support.derived_output import QUEUE_TREES, DerivedOutput
from tests.support.golden import log_records, relaid_queues, tree, unpack_golden
from tests.support.index_model import Content, read_content
from tests.support.processes import is_killed_at

RECORD = Path("reput") / "built.json"
SEVERAL = 12


def no_change(_store: Path) -> None:
    """A sound log."""


def lose_a_message(store: Path) -> None:
    """Queue offsets jump from then on."""
    victim = log_records(store)[1500]
    flip(store, victim.physical_offset + 4)


def spoil_a_body(store: Path) -> None:
    """Only its CRC tells."""
    flip(store, log_records(store)[1500].physical_offset + 88)


def flip(store: Path, at: int) -> None:
    size = next((store / "commitlog").iterdir()).stat().st_size
    path = store / "commitlog" / f"{at - at % size:020d}"
    data = bytearray(path.read_bytes())
    data[at % size] ^= 0x55
    path.write_bytes(data)


@dataclass(frozen=True)
class Case:
    """One setting with another value than the one that counts if nobody says any."""

    setting: str
    built: str
    """As an error shows it."""
    other: str
    golden: str = "plain"
    flags: dict[str, Any] = field(default_factory=dict)
    """The options of the first run."""
    arguments: tuple[str, ...] = ()
    """The same on the command line."""
    other_arguments: tuple[str, ...] = ()
    conf: str = ""
    """A line of broker.conf; the other value where there are no flags."""
    other_conf: str = ""
    spoil: Callable[[Path], None] = no_change

    def __str__(self) -> str:
        return self.setting


def by_conf(setting: str, built: str, other: str, golden: str = "plain") -> Case:
    lines = f"{setting}={built}\n", f"{setting}={other}\n"
    return Case(setting, built, other, golden, conf=lines[0], other_conf=lines[1])


CASES = (
    Case(
        "mappedFileSizeConsumeQueue", "400", "6000",
        flags={"mapped_file_size_consume_queue": 400},
        arguments=("--consume-queue-file-size", "400"),
        other_arguments=("--consume-queue-file-size", "6000"),
        other_conf="mappedFileSizeConsumeQueue=6000\n",
    ),
    Case(
        "onQueueGap", "blank", "rocketmq",
        flags={"on_queue_gap": OnQueueGap.BLANK}, arguments=("--on-queue-gap", "blank"),
        other_arguments=("--on-queue-gap", "rocketmq"), spoil=lose_a_message,
    ),
    Case(
        "indexTags", "true", "false",
        flags={"index_tags": True}, arguments=("--index-tags",),
        other_arguments=("--no-index-tags",),
    ),
    Case(
        "verifyCrc", "true", "false",
        flags={"verify_crc": True}, arguments=("--verify-crc",),
        other_arguments=("--no-verify-crc",), spoil=spoil_a_body,
    ),
    by_conf("mappedFileSizeConsumeQueueExt", "8192", "49152", "ext"),
    by_conf("mapperFileSizeBatchConsumeQueue", "4600", "9200", "batch"),
    by_conf("maxHashSlotNum", "777", "5000"),
    by_conf("maxIndexNum", "555", "20000"),
    by_conf("enableConsumeQueueExt", "false", "true", "ext"),
    by_conf("enableMultiDispatch", "false", "true", "lmq"),
    by_conf("enableLmq", "false", "true", "lmq"),
    by_conf("enableCalcFilterBitMap", "false", "true", "ext"),
    by_conf("expectConsumerNumUseFilter", "64", "32", "ext"),
    Case(
        "maxErrorRateOfBloomFilter", "20", "21", "ext",
        conf="expectConsumerNumUseFilter=64\nmaxErrorRateOfBloomFilter=20\n",
        other_conf="maxErrorRateOfBloomFilter=21\n",
    ),
)  # fmt: skip
"""The filters of golden store ext fix the shape of its bit maps: no other may be stated."""


@dataclass(frozen=True)
class Built:
    """A case's output, and one of the same log that was told everything in one run."""

    case: Case
    output: DerivedOutput
    whole: DerivedOutput

    @property
    def place(self) -> tuple[str, ...]:
        """For the command line."""
        return str(self.output.store), "--output", str(self.output.root)

    def commands(self) -> Iterator[tuple[str, ...]]:
        """All that read what is built, without Spark."""
        record = next(r for r in log_records(self.output.store) if r.queue_id == 1)
        topic, store = record.topic.decode(), self.place
        unique = record.property_map[b"UNIQ_KEY"].decode()
        yield "verify", *store
        yield "status", *store
        yield "expire", *store
        yield "get", store[0], topic, "1", "25", *store[1:]
        yield "tail", store[0], topic, "--count", "30", *store[1:]
        yield "query", store[0], topic, "--unique-key", unique, *store[1:]
        if (self.output.root / "consumequeue" / topic).is_dir():
            yield "inspect", "queue", store[0], topic, "1", "--from", "15", *store[1:]
        yield "diff", store[2], str(self.whole.root), "--only", "index,consumequeue"


def called(*arguments: str) -> str:
    """The output of a command. Raises what it raises."""
    found = CliRunner().invoke(app, arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, (arguments, found.output)
    return found.output


def half(batch: DispatchBatch) -> int:
    """Where the message in the middle of a batch begins."""
    offsets = sorted(int(unit) for run in batch.runs for unit in run.units["offset"])
    return offsets[len(offsets) // 2]


def recorded_settings(root: Path) -> Mapping[str, Any]:
    """As the output says that it was built."""
    record = read_build_record(root)
    assert record is not None
    return record.settings


def contents(root: Path) -> tuple[dict[str, bytes], list[Content]]:
    """Everything that is derived: queues by bytes, the index by content."""
    queues = {
        f"{name}/{path}": data for name in QUEUE_TREES for path, data in tree(root / name).items()
    }
    settings, index = recorded_settings(root), root / "index"
    slots, entries = settings["max_hash_slot_num"], settings["max_index_num"]
    paths = sorted(index.iterdir()) if index.is_dir() else []
    return queues, [read_content(path, slots, entries) for path in paths]


def set_conf(store: Path, case: Case, line: str) -> None:
    """Have broker.conf say the line, and nothing else of the setting."""
    path = store / "broker.conf"
    kept = [text for text in path.read_text().splitlines() if not text.startswith(case.setting)]
    path.write_text("\n".join([*kept, line]))


def build(case: Case, directory: Path) -> Built:
    """Half of it told, the rest untold; whole: all of it told. Then broker.conf says nothing more
    of the setting."""
    store = unpack_golden(case.golden, directory)
    case.spoil(store)
    set_conf(store, case, case.conf)
    output = DerivedOutput(store, directory / "output")
    whole = DerivedOutput(store, directory / "whole")
    whole.start(**case.flags)
    output.start(part=half, **case.flags)
    set_conf(store, case, "")
    output.start()
    return Built(case, output, whole)


@pytest.fixture(scope="module", params=CASES, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Each of the cases; the two tests that share it leave it as it was."""
    return build(request.param, tmp_path_factory.mktemp("built"))


@pytest.mark.extended
def test_what_was_said_once_counts_for_every_command(built: Built) -> None:
    """The second run and every reader know it, and none says anything else where it is told."""
    case, output = built.case, built.output
    assert contents(output.root) == contents(built.whole.root)
    before = tree(output.root)
    for command in built.commands():
        said = called(*command)
        if case.arguments and command[0] == "verify":
            assert called(*command, *case.arguments) == said
    assert tree(output.root) == before


def test_a_contradiction_is_refused_with_both_values(built: Built) -> None:
    """By a flag, and by the property file; before anything is touched."""
    case, output = built.case, built.output
    before = tree(output.root)
    names = f"built with {case.setting}={case.built}, but .* says {case.other}: .*rebuild"
    if case.other_arguments:
        with pytest.raises(UsageError, match=names):
            called("verify", *built.place, "--repair", *case.other_arguments)
        flags = {name: other_value(value) for name, value in case.flags.items()}
        with pytest.raises(UsageError, match=names):
            output.start(**flags)
    if case.other_conf:
        set_conf(output.store, case, case.other_conf)
        for command in built.commands():
            if command[0] != "diff":
                with pytest.raises(UsageError, match=names):
                    called(*command)
        with pytest.raises(UsageError, match=names):
            output.start()
        set_conf(output.store, case, "")
    assert tree(output.root) == before


def other_value(value: Any) -> Any:
    return {400: 6000, OnQueueGap.BLANK: OnQueueGap.ROCKETMQ, True: False}[value]


def test_verify_keeps_what_it_was_not_told(ram_path: Path) -> None:
    """A repair of sound files changes nothing, whatever they were built with."""
    for number, case in enumerate(CASES[1:4]):
        built = build(case, ram_path / str(number))
        before = tree(built.output.root)
        called("verify", *built.place, "--repair")
        after = tree(built.output.root)
        changed = {name for name in before if before[name] != after.get(name)}
        assert changed <= {"reput/owner.json", "reput/ends"}


def test_a_run_is_refused_with_exit_code_2(ram_path: Path, call: Call) -> None:
    """The whole command: one line, no byte changed."""
    built = build(CASES[2], ram_path)
    before = tree(built.output.root)
    done = call("run", *built.place, "--once", "--no-index-tags")
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("reput: error: "))
    assert f"{built.output.root} was built with indexTags=true" in line
    assert "--index-tags says false" in line
    assert tree(built.output.root) == before


def test_the_index_may_be_switched(ram_path: Path) -> None:
    """On from where it is said, and it stays on; then off, and it stays off: what is there is then
    not compared, as nobody goes on with it, until it is on again and lacks what came between."""
    output = DerivedOutput(unpack_golden("plain", ram_path), ram_path / "output")
    found = [record.physical_offset for record in log_records(output.store)]
    counts: list[int] = []
    for index in (False, None, True, None, False, None):
        end = found[400 * (len(counts) + 1)]
        # without an index nothing is there that says how its tags are
        output.start(part=lambda _, end=end: end, index=index, index_tags=True if index else None)
        counts.append(sum(len(content.entries) for content in output.index()))
        assert output.verify().differences == ()
    assert counts[:2] == [0, 0]
    assert 0 < counts[2] < counts[3] == counts[4] == counts[5]
    assert output.verify(repair=True).index_entries == 0
    output.start(index=True)
    assert {found.kind for found in output.verify(repair=True).differences} == {"index"}
    output.start()
    assert output.verify().differences == ()
    assert sum(len(content.entries) for content in output.index()) > counts[3]


def test_a_line_that_a_flag_overruled_is_none_until_it_changes(ram_path: Path) -> None:
    """broker.conf says 6000 all the time, the first run was told 400."""
    case = CASES[0]
    output = DerivedOutput(unpack_golden("plain", ram_path), ram_path / "output")
    output.start(part=half, **case.flags)
    output.start()
    assert output.verify().differences == ()
    set_conf(output.store, case, "mappedFileSizeConsumeQueue=8000")
    with pytest.raises(UsageError, match=r"ConsumeQueue=400, but .* says 8000"):
        output.start()


def test_a_dispatcher_that_stopped_at_a_gap_may_go_on_either_way(ram_path: Path) -> None:
    """``fail`` has closed up none, and filled none."""
    store = unpack_golden("plain", ram_path)
    lose_a_message(store)
    for gap in (OnQueueGap.ROCKETMQ, OnQueueGap.BLANK):
        output, whole = (DerivedOutput(store, ram_path / f"{gap}{name}") for name in "ab")
        with pytest.raises(ReputError, match="queue offsets jump"):
            output.start(on_queue_gap=OnQueueGap.FAIL)
        output.start(on_queue_gap=gap)
        whole.start(on_queue_gap=gap)
        assert contents(output.root) == contents(whole.root)


@pytest.mark.extended
def test_killed_anywhere_what_depends_on_it_is_never_there_without_it(
    ram_path: Path, seed: int
) -> None:
    """Before every second operation: an entry has its record, and the next start ends the same."""
    store = unpack_golden("plain", ram_path)
    flags = {"mapped_file_size_consume_queue": 400, "index_tags": True}
    whole = DerivedOutput(store, ram_path / "whole")
    whole.start(**flags)
    recorded, derived = [], []
    for ordinal in range(1 + seed % 2, 56, 2):
        output = DerivedOutput(store, ram_path / "output")
        assert is_killed_at(ordinal, lambda output=output: output.start(**flags))
        has_record = (output.root / RECORD).exists()
        has_parts = any((output.root / name).exists() for name in ("consumequeue", "index"))
        assert has_record >= has_parts
        recorded.append(has_record)
        derived.append(has_parts)
        if has_record and not has_parts and not any(derived):
            # nothing depends on it yet
            other = shutil.copytree(output.root, ram_path / "other")
            DerivedOutput(store, other).start(mapped_file_size_consume_queue=6000, index_tags=False)
            assert recorded_settings(other)["mapped_file_size_consume_queue"] == 6000
            shutil.rmtree(other)
        output.start(**({} if has_record else flags), adopt=True)
        assert contents(output.root) == contents(whole.root)
        shutil.rmtree(output.root)
    # between the two there were kills
    assert recorded.index(True) < derived.index(True)


OLD_CASES = CASES[:3]


@pytest.mark.parametrize("case", OLD_CASES, ids=str)
def test_an_output_of_an_older_reput_is_recognised(
    case: Case, ram_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By its files; what they do not tell is taken as given, and both are said and recorded."""
    built = build(case, ram_path)
    (built.output.root / RECORD).unlink()
    for command in built.commands():
        called(*command)
    with pytest.raises(UsageError, match=f"{case.setting}={case.built}"):
        called("verify", *built.place, "--repair", *case.other_arguments)
    assert not (built.output.root / RECORD).exists()
    with caplog.at_level(logging.INFO, "reput"):
        built.output.start()
    assert f"how {built.output.root} was built is not recorded" in caplog.text
    assert f"{case.setting}={case.built}" in caplog.text
    assert contents(built.output.root) == contents(built.whole.root)
    assert read_build_record(built.output.root) == read_build_record(built.whole.root) or case.conf


def test_rocketmqs_own_files_tell_their_sizes(ram_path: Path) -> None:
    """Where broker.conf names no size, the files tell it; and no tags are indexed."""
    for name in ("plain", "ext", "batch"):
        store = unpack_golden(name, ram_path)
        lines = (store / "broker.conf").read_text().splitlines()
        stated = dict(line.split("=") for line in lines)
        sizes = {
            key: value
            for key, value in stated.items()
            if key.startswith(("mappedFileSizeConsume", "mapperFileSize"))
        }
        (store / "broker.conf").write_text(
            "\n".join(line for line in lines if line.split("=")[0] not in sizes)
        )
        found = settings_of(store, read_store_settings(store))
        assert found.mapped_file_size_consume_queue == int(sizes["mappedFileSizeConsumeQueue"])
        if name == "ext":
            expected = int(sizes["mappedFileSizeConsumeQueueExt"])
            assert found.mapped_file_size_consume_queue_ext == expected
        if name == "batch":
            expected = int(sizes["mapperFileSizeBatchConsumeQueue"])
            assert found.mapper_file_size_batch_consume_queue == expected
        assert called("verify", str(store))
        with pytest.raises(UsageError, match="indexTags=false, but `index_tags=` says true"):
            called("verify", str(store), "--index-tags")


def test_a_damaged_record_is_said_and_nothing_is_guessed(ram_path: Path) -> None:
    """A changed digit would be another setting: each byte of the file counts."""
    built = build(CASES[0], ram_path)
    path = built.output.root / RECORD
    sound = path.read_bytes()
    rng = random.Random(7)
    texts = [b"", b"{}", b"[1]", sound[:-20], sound.replace(b'"version": 1', b'"version": 2')]
    for at in rng.sample([at for at in range(len(sound)) if sound[at : at + 1].isdigit()], SEVERAL):
        texts.append(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
    for text in texts:
        path.write_bytes(text)
        before = tree(built.output.root)
        with pytest.raises(StoreError, match=f"cannot read {path}.*remove it"):
            called("verify", *built.place, "--repair")
        with pytest.raises(StoreError, match=f"cannot read {path}"):
            built.output.start()
        assert tree(built.output.root) == before


def rebuilt(
    output: DerivedOutput, kinds: tuple[str, ...] = DIRECTORY_KINDS, **options: Any
) -> None:
    """As ``reput rebuild`` does."""
    topics = options.pop("topics", None)
    config = configured(output.store, output.root, **options)
    rebuild(config, threading.Event(), kinds=kinds, topics=topics)


@pytest.mark.usefixtures("spark")
def test_a_rebuild_builds_as_before_or_as_it_is_told(ram_path: Path) -> None:
    """The swap records its options, so that the next run continues with them."""
    output = DerivedOutput(unpack_golden("plain", ram_path), ram_path / "output")
    output.start(part=half, mapped_file_size_consume_queue=400, index_tags=True)
    rebuilt(output)
    assert tree(output.root / "consumequeue") == relaid_queues(output.store, 400)
    before = contents(output.root)
    output.start()
    assert contents(output.root) == before
    rebuilt(output, mapped_file_size_consume_queue=6000, on_queue_gap=OnQueueGap.BLANK)
    output.start()
    assert recorded_settings(output.root)["on_queue_gap"] is OnQueueGap.BLANK
    assert tree(output.root / "consumequeue") == tree(output.store / "consumequeue")
    assert contents(output.root)[1] == before[1]
    assert output.verify().differences == ()


@pytest.mark.usefixtures("spark")
def test_a_rebuild_of_a_part_changes_what_decides_that_part_alone(
    ram_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything else is refused before anything is built; killed in the swap, the next start brings
    the record that belongs to the new index."""
    output = DerivedOutput(unpack_golden("plain", ram_path), ram_path / "output")
    whole = DerivedOutput(output.store, ram_path / "whole")
    whole.start(index_tags=True)
    output.start(part=half)
    before = tree(output.root)
    for options in (
        {"kinds": ("index",), "on_queue_gap": OnQueueGap.BLANK},
        {"kinds": ("index",), "verify_crc": True},
        {"kinds": ("consumequeue",), "index_tags": True},
        {"topics": ["Topic_1"], "mapped_file_size_consume_queue": 400},
    ):
        with pytest.raises(UsageError, match="was built with"):
            rebuilt(output, **options)
    assert tree(output.root) == before
    with monkeypatch.context() as patch, pytest.raises(OutputError):
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("exchange:2=EIO"))
        rebuilt(output, ("index",), index_tags=True)
    assert finish_swap(output.root)
    output.start()
    assert contents(output.root) == contents(whole.root)
    assert output.verify().differences == ()


@pytest.mark.usefixtures("spark")
def test_a_rebuild_by_name_switches_the_index_on(ram_path: Path) -> None:
    """A rebuild of the queues alone leaves the index as it is."""
    output = DerivedOutput(unpack_golden("plain", ram_path), ram_path / "output")
    output.start(part=half, index=False)
    rebuilt(output, ("index",), index=True)
    rebuilt(output, ("consumequeue",))
    output.start()
    assert output.unequal() == []
    assert output.verify().differences == ()
