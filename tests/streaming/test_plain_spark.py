"""Runs without private parts of pyspark: by the switch, and where a part is not as expected."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from reput.sources.plainspark import PLAIN_VARIABLE
from reput.streaming.spark import frames, internals, metrics
from reput.streaming.spark.internals import ATTRIBUTES, FUNCTIONS, OF_INSTANCES
from tests.support.cli import ROOT
from tests.support.golden import difference
from tests.support.other_pyspark import other_pyspark
from tests.support.processes import CHILD_FAILED, wait_status_of

GOLDEN_TESTS = (
    "streaming/test_executors.py::test_queues_and_index_equal_rocketmqs[lmq]",
    "sources/test_rows.py::test_rows_equal_the_reference_decoder[mixed]",
)
"""A rebuild on executors, and a source as a table."""
FURTHER_GOLDEN_TESTS = (
    "streaming/test_golden.py::test_live_query_follows_a_log_that_grows",
    "streaming/test_golden.py::test_replay_changes_no_byte_and_counts_every_entry_as_duplicate",
    "streaming/test_sparkerrors.py",
    "sources/test_contract.py::test_stream_reads_each_message_once_over_restarts",
    "sources/test_queue_rows.py::test_rows_equal_the_reference_decoder[mixed]",
    "sources/test_queue_stream.py::test_a_stream_survives_new_queues_and_restarts",
)
"""Runs that follow a log or end with it, workers' errors, the other source, both as streams."""
RENAMED = {
    *(name.rpartition(":")[2].rpartition(".")[2] for name in (*FUNCTIONS, *ATTRIBUTES)),
    *(name for names in OF_INSTANCES.values() for name in names),
} - {"worker", "manager", "proc", "SQL_MAP_ARROW_ITER_UDF"}
"""Words that nothing but pyspark's own Python uses."""
GOING_ON = "going on with plain Spark"


@pytest.mark.parametrize(
    "names", [GOLDEN_TESTS, pytest.param(FURTHER_GOLDEN_TESTS, marks=pytest.mark.slow)],
    ids=["few", "further"],
)  # fmt: skip
def test_golden_stores_where_no_private_part_is_as_expected(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Spark is the same, and pyspark whole: only the names are others. One line says so, and
    every byte and row is as ever."""
    python_path = os.pathsep.join(
        map(str, (other_pyspark(tmp_path / "other", RENAMED), ROOT / "src"))
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider",
            f"--basetemp={tmp_path / 'tests'}", *(f"tests/{name}" for name in names),
        ],
        env={**os.environ, "PYTHONPATH": python_path, PLAIN_VARIABLE: ""},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed in", done.stdout.splitlines()[-1])
    (line,) = [line for line in done.stdout.splitlines() if GOING_ON in line]
    assert "pyspark 4.3.0 has no pyspark.java_gateway:launch_gateway: " in line


ANOTHER = (
    (
        "from pyspark import java_gateway as m; m.launch_gateway = lambda further: None",
        "launch_gateway with other parameters, (further)",
    ),
    ("from reput.streaming.spark import session as m; m.DATA_SOURCES = 'No$'", "another No$"),
    ("from reput.streaming.spark import metrics as m; m.LISTENER = 'No'", "another No, "),
    ("from reput.streaming.spark import metrics as m; m.LAG_SOURCE = 'No$'", "another No$"),
    ("from reput.streaming.spark import jvm as m; m.PYSPARK_RELEASE = '4.2.'", "is not 4.2.*"),
)
"""Programs that change pyspark or what we look for in Spark, and what is then said."""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("prelude", "said"),
    [
        pytest.param(f"import os; os.environ['{PLAIN_VARIABLE}'] = '1'", None, id="switch"),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in ANOTHER),
    ],
)
def test_a_run_that_goes_plain_writes_the_same_bytes(
    golden: Callable[[str], Path], tmp_path: Path, prelude: str, said: str | None
) -> None:
    """Where the switch is set, where pyspark or Spark differ, where another release is
    installed."""
    store, output = golden("mixed"), tmp_path / "output"
    program = f"{prelude}; from reput.__main__ import main; main()"
    options = ("--output", str(output), "--once", "--metrics-port", "0")
    done = subprocess.run(
        [sys.executable, "-c", program, "run", str(store), *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert difference(output / "consumequeue", store / "consumequeue") == []
    lines = [line for line in done.stderr.splitlines() if GOING_ON in line]
    assert [said in line for line in lines] == ([] if said is None else [True]), done.stderr


def test_frames_are_mapped_where_spark_has_another_method(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By pyspark's own mapInArrow, with the same rows."""
    monkeypatch.setenv(PLAIN_VARIABLE, "")
    frame = spark.range(5)

    def rows() -> list[Row]:
        return frames.mapped(frame, lambda batches: batches, "id long").collect()

    assert rows() == frame.collect()
    assert not caplog.messages
    monkeypatch.setattr(frames, "MAP_IN_ARROW", "no")
    assert rows() == frame.collect()
    (line,) = caplog.messages
    assert line.startswith(f"spark {spark.version} has another no, ")
    assert GOING_ON in line


def test_there_is_no_gauge_where_spark_has_another_source(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried once, and said once."""
    monkeypatch.setenv(PLAIN_VARIABLE, "")
    monkeypatch.setattr(metrics, "LAG_SOURCE", "No$")
    gauge = metrics.LagGauge(spark)
    for lag in (5, 6):
        gauge.show(lag)
    (line,) = caplog.messages
    assert line.startswith(f"spark {spark.version} has another No$, ")
    assert GOING_ON in line


def owner_of(name: str) -> tuple[Any, str]:
    """The module or class that has a part itself, and the part's name there."""
    place, _, attribute = name.replace(":", ".").rpartition(".")
    owner = resolve_name(place)
    owners = getattr(owner, "__mro__", (owner,))
    return next(one for one in owners if attribute in vars(one)), attribute


def without(name: str) -> None:
    """Take a part out of pyspark in this process."""
    owner, attribute = owner_of(name)
    delattr(owner, attribute)


def with_a_parameter(name: str) -> None:
    """Replace a function of pyspark by one with another parameter."""
    owner, attribute = owner_of(name)
    setattr(owner, attribute, lambda further: further)


def with_another_attribute(method: str, name: str) -> None:
    """Let a method of pyspark give its object an attribute of another name."""
    function: Any = resolve_name(method)
    code = function.__code__
    names = tuple("renamed" if known == name else known for known in code.co_names)
    function.__code__ = code.replace(co_names=names)


def line_after(change: Callable[[], None]) -> str:
    """Return the line that the check logs in a process whose pyspark was changed."""
    read, write = os.pipe()

    def work() -> None:
        os.environ.pop(PLAIN_VARIABLE, None)
        handler = logging.StreamHandler(os.fdopen(write, "w"))
        logging.getLogger("reput").handlers = [handler]
        change()
        internals.check()
        internals.check()
        handler.flush()
        assert os.environ[PLAIN_VARIABLE] == "1"

    assert wait_status_of(work) != CHILD_FAILED
    os.close(write)
    with os.fdopen(read) as lines:
        (line,) = lines
    return line


@pytest.mark.parametrize("name", [*FUNCTIONS, *ATTRIBUTES])
def test_a_part_that_is_missing_is_named(name: str) -> None:
    """In one line, with the version."""
    assert line_after(lambda: without(name)).startswith(f"pyspark 4.3.0 has no {name}: {GOING_ON}")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_other_parameters_is_named(name: str) -> None:
    """With those that it has."""
    line = line_after(lambda: with_a_parameter(name))
    assert line.startswith(f"pyspark 4.3.0 has {name} with other parameters, (further): ")


@pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method, names in OF_INSTANCES.items() for name in names]
)
def test_an_attribute_that_objects_lack_is_named(method: str, name: str) -> None:
    """With the method that would set it."""
    line = line_after(lambda: with_another_attribute(method, name))
    assert line.startswith(f"pyspark 4.3.0 has no {name} by {method}: {GOING_ON}")


@pytest.mark.parametrize("method", [method for method in OF_INSTANCES if method not in FUNCTIONS])
def test_a_method_that_is_missing_is_named(method: str) -> None:
    """With the first of the attributes that it would set."""
    line = line_after(lambda: without(method))
    name, *_ = OF_INSTANCES[method]
    assert line.startswith(f"pyspark 4.3.0 has no {name} by {method}: {GOING_ON}")


@pytest.mark.parametrize("package", internals.VERSIONS)
def test_another_release_is_named(package: str) -> None:
    """Nothing is known of its private parts."""
    line = line_after(lambda: internals.VERSIONS.update({package: "4.2."}))
    said = rf"{package} \S+ is not 4\.2\.\*, whose private parts are known: {GOING_ON}"
    assert re.match(said, line)


def test_the_installed_pyspark_is_as_expected(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise every run would be plain, and no test of the fast one would notice."""
    internals.check()
    assert GOING_ON not in caplog.text
    assert PLAIN_VARIABLE not in os.environ
