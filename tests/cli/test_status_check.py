"""Faults that ``reput status`` finds, and its one line and exit code for a monitoring system."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli.statuscheck import Checked, check
from reput.cli.topview import faults
from reput.store.config import read_store_settings
from reput.store.errors import StoreError
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep.watch.check import Thresholds
from reput.upkeep.watch.outputs import OutputWatch
from tests.cli.test_errors import assert_one_line
from tests.support.broker_store import BrokerStore, four_queues
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput
from tests.support.golden import difference
from tests.support.processes import wait_status_of

MEASURE = re.compile(r"'([^']*)'=([0-9.]+)(s|B|);([0-9.]*);([0-9.]*);0")


def killed(made: BrokerStore, output: Path) -> int:
    """Kill a dispatcher with SIGKILL once half of the log is durable; the watermark."""
    end = made.log.spans[len(made.log.spans) // 2][0]

    def work() -> None:
        with running(DispatcherConfig(made.root, output)) as run:
            run.commit(run.scan(end))
            os.kill(os.getpid(), signal.SIGKILL)

    assert wait_status_of(work) == -signal.SIGKILL
    return end


def measures(line: str) -> dict[str, tuple[float, str, str, str]]:
    """The measures after the bar, as a plugin's reader takes them apart."""
    _, _, text = line.partition(" | ")
    found = {
        m[1]: (float(m[2]), m[3], m[4], m[5]) for m in map(MEASURE.fullmatch, split(text)) if m
    }
    assert len(found) == len(split(text))
    return found


def split(text: str) -> list[str]:
    return re.findall(r"'[^']*'=\S+", text)


def test_a_run_that_was_killed_is_a_fault_everywhere(tmp_path: Path, call: Call) -> None:
    """``status`` ends with exit code 1, with several stores as well; ``--check`` is critical, and
    ``top`` names it; the next run ends it."""
    made = four_queues(tmp_path / "stores" / "one")
    made.write()
    output = tmp_path / "outputs" / "one"
    watermark = killed(made, output)
    one = (made.root, "--output", output)
    for command in (one, ("--stores", tmp_path / "stores" / "*", "--outputs", output.parent)):
        done = call("status", *command)
        assert done.returncode == 1
        assert f"the run of {output} ended without stopping" in done.stderr
        assert done.stderr.endswith("; start reput run again\n")
        checked = call("status", *command, "--check")
        assert (checked.returncode, checked.stderr) == (2, "")
        assert "REPUT CRITICAL - " in checked.stdout
        assert "ended without stopping" in checked.stdout
        assert len(checked.stdout.splitlines()) == 1
    assert "run ended without stopping" in done.stdout
    found = json.loads(call("status", *one, "--json").stdout)
    owner = json.loads((output / "reput" / "owner.json").read_text())
    assert f"process {owner['pid']} on {owner['host']}" in found["unstopped_run"]
    assert (found["watermark"], found["writer_pid"]) == (watermark, None)
    settings = read_store_settings(made.root)
    with OutputWatch(settings, output, output / "reput" / "spark") as watch:
        assert any("ended without stopping" in line for line in faults(watch.read()))
        DerivedOutput(made.root, output).start()
        assert faults(watch.read()) == []
    assert call("status", *one).returncode == 0
    assert call("status", *one, "--check").returncode == 0


@pytest.mark.parametrize(("count", "rest"), [(3, ""), (4, "; and 1 more"), (9, "; and 6 more")])
def test_a_line_names_three_problems(count: int, rest: str) -> None:
    """Other stores' are counted."""
    outputs = [Checked(f"s{number}", StoreError("is gone")) for number in range(count)]
    (line,) = check(lambda: outputs, Thresholds()).parts
    named = "; ".join(f"s{number}: is gone" for number in range(3))
    assert line == f"REPUT UNKNOWN - {named}{rest}"


def test_a_run_that_goes_on_is_no_fault(tmp_path: Path, call: Call) -> None:
    """Nor one that was never begun."""
    made = four_queues(tmp_path / "store")
    made.write()
    assert call("status", made.root, "--check").returncode == 0
    with running(DispatcherConfig(made.root, tmp_path / "output")) as run:
        run.commit(run.scan(run.start.log_end))
        assert call("status", made.root, "--output", tmp_path / "output").returncode == 0


@pytest.mark.parametrize(
    ("age", "code", "state"), [(0, 0, "OK"), (100, 1, "WARNING"), (1000, 2, "CRITICAL")]
)
def test_lag_beyond_a_threshold(
    tmp_path: Path, call: Call, age: int, code: int, state: str
) -> None:
    """In seconds, the age of the first message that is not dispatched; measures carry both."""
    made = four_queues(tmp_path / "store")
    made.write()
    output = DerivedOutput(made.root, tmp_path / "output")
    output.start()
    if age:
        stored = int((time.time() - age) * 1000)
        made.log.append(topic=b"Orders", queue_offset=60, store_timestamp=stored)
        made.log.write(made.root / "commitlog")
    done = call(
        "status", made.root, "--output", output.root,
        "--check", "--warn-lag", "50s", "--crit-lag", "10m",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(f"REPUT {state} - ")
    found = measures(done.stdout)
    assert age <= found["lag"][0] < age + 60
    assert found["lag"][1:] == ("s", "50", "600")
    size = made.log.spans[-1][1] - made.log.spans[-1][0] if age else 0
    assert found["lag_bytes"] == found["unqueued"] == (size, "B", "", "")
    assert found["quarantine"][0] == found["gaps"][0] == 0


def test_what_cannot_be_known_is_unknown(tmp_path: Path, call: Call) -> None:
    """A store that is none, and a threshold where there is no watermark; among several stores the
    worst state counts."""
    stores = tmp_path / "stores"
    made = four_queues(stores / "a|b")
    made.write()
    done = call("status", tmp_path, "--check")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("REPUT UNKNOWN - ")
    assert call("status", made.root, "--check", "--warn-lag", "5s").returncode == 3
    outputs = tmp_path / "outputs"
    DerivedOutput(made.root, outputs / "a|b").start()
    several = ("--stores", stores / "*", "--outputs", outputs, "--check")
    done = call("status", *several)
    assert (done.returncode, len(measures(done.stdout))) == (0, 5)
    assert "a_b lag" in measures(done.stdout)
    (stores / "gone").mkdir()
    (stores / "gone" / "commitlog").mkdir()
    done = call("status", *several)
    assert (done.returncode, done.stdout.count("|")) == (3, 1)
    for wrong in (("--warn-lag", "5s"), ("--check", "--watch"), ("--check", "--topic", "Orders")):
        assert_one_line(call("status", made.root, *wrong), 2, "--check")


def test_a_loss_counts_before_what_is_not_known(tmp_path: Path, call: Call) -> None:
    """The lag of a broker's queues is not known, and neither is that of a store that cannot be
    read."""
    made = four_queues(tmp_path)
    made.write()
    made.zero_last("Orders", 1, 5)
    done = call("status", made.root, "--check", "--warn-lag", "5s")
    assert done.returncode == 2
    loss, lag = done.stdout.index("in no queue"), done.stdout.index("lag is unknown")
    assert loss < lag


def test_a_bar_stands_before_measures_alone(tmp_path: Path, call: Call) -> None:
    """A path or name may have one: what stands after it would be read as measures."""
    made = four_queues(tmp_path / "a|b")
    made.write()
    made.zero_last("Orders", 1, 5)
    read = call("status", made.root, "--check").stdout
    unread = call("status", tmp_path / "a|c", "--check").stdout
    assert "a/b" in read and measures(read.strip())
    assert "a/c" in unread and "|" not in unread


def test_units_beyond_the_logs_end_do_not_count(tmp_path: Path, call: Call) -> None:
    """Queues that were copied later than the log: ``status`` counts what ``get`` finds."""
    made = four_queues(tmp_path / "store")
    made.write()
    made.log.cut(made.queues["Orders", 0][-10][0])
    shutil.rmtree(made.root / "commitlog")
    made.log.write(made.root / "commitlog")
    found = json_object(call("status", made.root, "--json"))
    counted = {(one["topic"], one["queue_id"]): one["max_offset"] for one in found["queues"]}
    assert counted == {
        key: sum(end <= made.log.end for _, end in spans) for key, spans in made.queues.items()
    }
    assert found["queues_beyond_log"] == ["Orders/0", "Orders/1", "Payments/0", "Payments/1"]
    assert found["unqueued_bytes"] == 0
    assert "4 queues with units beyond the log's end" in call("status", made.root).stdout
    done = call("status", made.root, "--check")
    assert (done.returncode, "Orders/0" in done.stdout) == (1, True)
    assert call("get", made.root, "Orders", 0, counted["Orders", 0] - 1).returncode == 0
    assert call("get", made.root, "Orders", 0, counted["Orders", 0]).returncode == 1


def zeroed(made: BrokerStore, output: Path) -> None:
    for key in made.queues:
        if key[0] != "Idle":
            made.zero_last(*key, 20, output)


def one_zeroed(made: BrokerStore, output: Path) -> None:
    made.zero_last("Payments", 1, 7, output)


def all_removed(_made: BrokerStore, output: Path) -> None:
    shutil.rmtree(output / "consumequeue")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("damage", [zeroed, one_zeroed, all_removed])
@pytest.mark.parametrize("place", ["a broker's queues", "an output"])
def test_the_command_that_is_named_puts_every_message_into_its_queue(
    tmp_path: Path, call: Call, place: str, damage: Callable[[BrokerStore, Path], None]
) -> None:
    """The queues are then those that the broker built, and nothing is named any more."""
    made = four_queues(tmp_path / "store")
    made.write()
    (made.root / "consumequeue").rename(tmp_path / "right")
    output = made.root if place == "a broker's queues" else tmp_path / "output"
    if output != made.root:
        DerivedOutput(made.root, output).start()
    else:
        shutil.copytree(tmp_path / "right", made.root / "consumequeue")
    damage(made, output)
    where = () if output == made.root else ("--output", output)
    checked = call("status", made.root, *where, "--check")
    assert checked.returncode == 2
    found = json_object(call("status", made.root, *where, "--json"))
    _, _, command = found["unqueued"].rpartition(": ")
    name, *arguments = shlex.split(command)
    assert name == "reput"
    assert call(*arguments).returncode == 0
    assert call("status", made.root, *where, "--check").returncode == 0
    assert difference(output / "consumequeue", tmp_path / "right") == []
