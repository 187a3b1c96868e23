"""``reput table`` as a user calls it, and ``reput run --compact-every``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from reput.sinks.delta.table import DeltaTarget
from tests.sinks.test_iceberg import MESSAGES, Filling
from tests.sinks.test_tables import STORE_ID, Source
from tests.support.cli import Call
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import catalog_properties
from tests.support.tables import plain_columns, plain_rows

ICEBERG = "lake.db.messages"


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    """A log, and an Iceberg table with a file for each message."""
    filling = Filling(tmp_path)
    filling.fill(*range(1, MESSAGES + 1))
    return filling


@pytest.fixture
def catalogs(tmp_path: Path, filling: Filling) -> Path:
    """The file that says where its catalog is."""
    lines = [f'{name} = "{value}"' for name, value in catalog_properties(filling.root).items()]
    path = tmp_path / "catalogs.toml"
    path.write_text("\n".join(["[lake]", *lines]))
    return path


def test_an_iceberg_table(filling: Filling, catalogs: Path, call: Call) -> None:
    """First compacted to a file for each day, then only its newest snapshot stays."""
    done = call("table", "compact", ICEBERG, "--iceberg-config", catalogs, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["replaced_files"], said["new_files"]) == (MESSAGES, 3)
    keep = "--iceberg-config", catalogs, "--keep-snapshots", 1
    done = call("table", "expire", ICEBERG, *keep)
    assert done.stdout.startswith("12 snapshots and "), done.stderr
    assert len(filling.table.snapshots()) == 1
    assert len(list(filling.root.rglob("*.parquet"))) == 3
    assert filling.offsets() == filling.starts


def test_a_delta_table(golden: Callable[[str], Path], tmp_path: Path, call: Call) -> None:
    """It keeps the files of its old versions for its retention."""
    source, table = Source(golden("plain")), tmp_path / "table"
    follower = DeltaTarget(str(table)).open(STORE_ID, ANY_SETTINGS)
    start = follower.position() or source.log.min_offset
    for end in source.cuts(3):
        source.write(follower, start, end)
        start = end
    before = len(DeltaTable(str(table)).file_uris())
    done = call("table", "compact", table)
    assert f"{before:,} files of " in done.stdout, done.stderr
    assert len(DeltaTable(str(table)).file_uris()) < before
    assert call("table", "expire", table).stdout == "0 snapshots and 0 files removed\n"
    assert plain_columns(table) == plain_rows(source.store)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("compact", "NONE"), 2, "there is no Delta table at"),
        (("compact", "NONE", "--target-file-size", "x"), 2, "--target-file-size is 'x'"),
        (("compact", "x://u:secret@host/t"), 2, "there is no Delta table at x://host/t"),
        (("compact", "memory://u:secret@host/t"), 1, "the table memory://host/t failed"),
        (("expire", "NONE", "--keep-snapshots", 1), 2, "--iceberg-config FILE"),
        (("expire", "lake.db.none", "--iceberg-config", "CATALOGS"), 2, "there is no table"),
        (("expire", "lake", "--iceberg-config", "CATALOGS"), 2, "CATALOG.NAMESPACE.TABLE"),
        (("compact", "BROKEN"), 1, "the upkeep of the table "),
    ],
)
def test_a_table_that_cannot_be_kept(
    tmp_path: Path, catalogs: Path, call: Call, words: tuple[object, ...], code: int, what: str
) -> None:
    """One line says why."""
    broken = tmp_path / "broken"
    (broken / "_delta_log").mkdir(parents=True)
    (broken / "_delta_log" / f"{0:020}.json").write_text('{"no": "action"}')
    paths = {"CATALOGS": catalogs, "BROKEN": broken, "NONE": tmp_path / "none"}
    done = call("table", *(paths.get(str(word), word) for word in words))
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert what in done.stderr
    assert "secret" not in done.stderr
    assert "[31m" not in done.stderr, "a library's colours"


@pytest.mark.usefixtures("spark")
def test_a_run_compacts_its_tables(
    golden: Callable[[str], Path], tmp_path: Path, catalogs: Path, call: Call
) -> None:
    """Both at the interval that is given; the log says what was done."""
    done = call(
        "run", golden("plain"), "--output", tmp_path / "output", "--once", "--delta",
        tmp_path / "table", "--iceberg", "lake.own.messages", "--iceberg-config", catalogs,
        "--compact-every", "0s",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("delta", "iceberg"):
        assert f"follower {name}: 0 files compacted to 0" in done.stderr
