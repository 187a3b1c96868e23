"""Catalogs of Iceberg tables, tables in them that cannot be filled, and files that are synced."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, MonthTransform
from pyiceberg.types import NestedField, StringType, TimestamptzType
from requests import ReadTimeout

from reput.sinks.iceberg import restcatalog
from reput.sinks.iceberg.catalog import TableName, read_catalog
from reput.sinks.iceberg.localfiles import SyncedFileIO
from reput.sinks.iceberg.table import IcebergTarget, IcebergWriter
from reput.sinks.tables.follower import TableFollower
from reput.store import fsops
from reput.store.bodies.declaration import BodyColumns
from reput.store.errors import UsageError
from tests.sinks.test_iceberg import MESSAGES, Filling
from tests.sinks.test_tables import STORE_ID
from tests.support.processes import open_files
from tests.support.settings import ANY_SETTINGS
from tests.support.tableformats import (
    ICEBERG_TABLE,
    catalog_properties,
    iceberg_catalog,
    iceberg_target,
)


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    """A log, and no table yet."""
    return Filling(tmp_path)


@pytest.mark.timeout(20)
def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By our limit; the library has none."""
    monkeypatch.setattr(restcatalog, "REQUEST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        properties = {"type": "rest", "uri": f"http://127.0.0.1:{server.getsockname()[1]}"}
        follower = IcebergTarget(ICEBERG_TABLE, properties).open(STORE_ID, ANY_SETTINGS)
        with pytest.raises(ReadTimeout):
            follower.position()
        follower.close()


TIME = NestedField(1, "storeTimestamp", TimestamptzType())
BY_DAY = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
BY_MONTH = PartitionSpec(PartitionField(1, 1000, MonthTransform(), "month"))


@pytest.mark.parametrize(
    ("schema", "spec", "version", "what"),
    [
        (Schema(TIME), BY_MONTH, "2", "has the partition field month"),
        (Schema(TIME), BY_DAY, "1", "has format version 1, not 2"),
        (Schema(TIME, NestedField(2, "more", StringType(), required=True)), BY_DAY, "2", "more"),
    ],
)
def test_a_table_that_our_files_do_not_fit_is_refused(
    filling: Filling, schema: Schema, spec: PartitionSpec, version: str, what: str
) -> None:
    """Others made it."""
    catalog: Catalog = iceberg_catalog(filling.root)
    catalog.create_namespace(ICEBERG_TABLE.namespace)
    catalog.create_table(
        ICEBERG_TABLE.identifier, schema, partition_spec=spec,
        properties={"format-version": version},
    )  # fmt: skip
    with pytest.raises(UsageError, match=what):
        filling.follower().position()


def test_a_table_of_others_with_the_day_alone_is_filled(filling: Filling) -> None:
    """Our columns are added to its own."""
    catalog: Catalog = iceberg_catalog(filling.root)
    catalog.create_namespace(ICEBERG_TABLE.namespace)
    schema = Schema(TIME, NestedField(2, "more", StringType()))
    catalog.create_table(ICEBERG_TABLE.identifier, schema, partition_spec=BY_DAY)
    filling.fill(4, MESSAGES)
    assert filling.offsets() == filling.starts
    assert_bounds_of_few_columns(filling)


def assert_bounds_of_few_columns(filling: Filling) -> None:
    """Bodies and properties would fill the manifests, and with them each reader's memory."""
    schema = filling.table.schema()
    without, with_bounds = (
        {schema.find_field(name).field_id for name in names}
        for names in (("body", "properties.key", "properties.value"), ("topic", "physicalOffset"))
    )
    for task in filling.table.scan().plan_files():
        bounds = {*task.file.lower_bounds, *task.file.upper_bounds}
        assert with_bounds <= bounds
        assert bounds.isdisjoint(without)


def test_a_table_that_is_made_here_asks_other_writers_for_little(filling: Filling) -> None:
    """They keep no more statistics of bodies than this one, old metadata goes, and manifests are
    joined: each commit would make the next one slower without end."""
    filling.fill(2)
    assert_bounds_of_few_columns(filling)
    properties = filling.table.properties
    for name in ("body", "properties.key", "properties.value"):
        assert properties[f"write.metadata.metrics.column.{name}"] == "none"
    assert properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert 0 < int(properties["write.metadata.previous-versions-max"]) < 100
    assert properties["commit.manifest-merge.enabled"] == "true"
    assert 1 < int(properties["commit.manifest.min-count-to-merge"]) < 100


def test_columns_are_added_to_a_table_that_another_writer_has_made_anew(filling: Filling) -> None:
    """Its schema has the number of the one before it, and not its columns."""
    columns = BodyColumns({"T0": {"id": "long"}})
    ours = iceberg_target(filling.root, columns).open(STORE_ID, ANY_SETTINGS)
    assert isinstance(ours, TableFollower)
    filling.write(ours, 4)
    iceberg_catalog(filling.root).drop_table(ICEBERG_TABLE.identifier)
    filling.fill(2)
    assert "json" not in filling.table.schema().column_names
    filling.write(ours, MESSAGES)
    assert "json" in filling.table.schema().column_names
    assert filling.offsets() == filling.starts


def test_a_namespace_of_several_parts_is_made(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the outside in, as servers want it."""
    made = list[tuple[str, ...]]()
    make = SqlCatalog.create_namespace_if_not_exists

    def noted(self: SqlCatalog, namespace: tuple[str, ...]) -> None:
        made.append(namespace)
        make(self, namespace)

    monkeypatch.setattr(SqlCatalog, "create_namespace_if_not_exists", noted)
    table = TableName("lake", ("a", "b", "messages"))
    properties = catalog_properties(filling.root)
    follower = IcebergTarget(table, properties).open(STORE_ID, ANY_SETTINGS)
    assert follower.position() is None
    filling.source.write(follower, 0, filling.ends[-1])
    catalog = iceberg_catalog(filling.root)
    assert made == [("a",), ("a", "b")]
    assert ("a",) in catalog.list_namespaces()
    assert catalog.load_table(table.identifier).scan().count() == MESSAGES


@pytest.mark.parametrize("text", ["lake", "lake.table", "lake..table", ".db.table"])
def test_a_name_that_is_no_table(text: str) -> None:
    """It has a catalog, a namespace and a table."""
    with pytest.raises(UsageError, match=r"CATALOG\.NAMESPACE\.TABLE"):
        TableName.parse(text)
    assert TableName.parse("lake.a.b.table").namespace == ("a", "b")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "has no catalog"),
        ("[other]\ntype='sql'", "it has other"),
        ("[lake", "cannot read"),
        ("[lake]\nuri='x'", "type = None; it must be rest or sql"),
        ("[lake]\ntype='hadoop'", "two writers"),
        ("[lake]\ntype='glue'", "it must be rest or sql"),
        ("[lake]\ntype='sql'\npy-io-impl='x'", "leave it out"),
        ("[lake]\ntype='rest'\nsnapshot-loading-mode='refs'", "rolled back"),
        ("[lake]\ntype='rest'\nwarehouse='/data'", "object store"),
        ("[lake]\ntype='rest'\nwarehouse='file:///data'", "object store"),
    ],
)
def test_a_catalog_that_cannot_be_used_is_named(tmp_path: Path, text: str, what: str) -> None:
    """With its file."""
    path = tmp_path / "catalogs.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=what) as raised:
        read_catalog(path, "lake")
    assert str(path) in str(raised.value)
    path.write_text("[lake]\ntype='sql'\nuri='sqlite://'\ninit_catalog_tables=true", "utf-8")
    assert read_catalog(path, "lake")["init_catalog_tables"] == "true"


def test_properties_are_texts_as_pyiceberg_takes_them(tmp_path: Path) -> None:
    """Numbers and switches too; a table of its own stays one."""
    path = tmp_path / "catalogs.toml"
    path.write_text(
        "[lake]\ntype='rest'\nwarehouse='name'\na=false\nb=7\nc='True'\n[lake.auth]\nd=true",
        "utf-8",
    )
    assert read_catalog(path, "lake") == {
        "type": "rest", "warehouse": "name", "a": "false", "b": "7", "c": "True",
        "auth": {"d": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("warehouse", "path"),
    [
        ("/data/a b", "/data/a b"),
        ("file:///data/a b", "/data/a b"),
        ("file:/data/a%20b", "/data/a%20b"),
        ("s3://bucket/data", None),
        (None, None),
    ],
)
def test_a_warehouse_on_this_machine_has_a_path(warehouse: str | None, path: str | None) -> None:
    """A run looks there whether it would write among a store's data."""
    properties = {} if warehouse is None else {"warehouse": warehouse}
    target = IcebergTarget(TableName("lake", ("db", "table")), {"type": "sql", **properties})
    assert target.local_path == (None if path is None else Path(path))


@pytest.mark.parametrize("name", ["a b", "a%20b", "a%b", "ü"])
def test_a_warehouse_is_looked_for_where_its_files_are(tmp_path: Path, name: str) -> None:
    """The library writes to the path as it stands, and takes no escapes in it."""
    warehouse = f"file://{tmp_path}/{name}"
    with SyncedFileIO().new_output(f"{warehouse}/file").create() as stream:
        stream.write(b"")
    target = IcebergTarget(TableName("lake", ("db", "table")), {"warehouse": warehouse})
    assert target.local_path is not None
    assert (target.local_path / "file").exists()


def test_a_relative_warehouse_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyiceberg takes it."""
    monkeypatch.chdir(tmp_path)
    target = IcebergTarget(TableName("lake", ("db", "table")), {"warehouse": "lake"})
    assert target.local_path == tmp_path / "lake"


def test_a_table_whose_metadata_a_server_writes_here_is_refused(filling: Filling) -> None:
    """Its warehouse may have a name that says nothing of where its tables are."""
    filling.fill(2)
    server = {"type": "rest", "uri": "http://127.0.0.1:9", "warehouse": "lake"}
    writer = IcebergTarget(ICEBERG_TABLE, server).open(STORE_ID, ANY_SETTINGS)._writer
    assert isinstance(writer, IcebergWriter)
    with pytest.raises(UsageError, match="the server writes without a sync"):
        writer._check_fits(filling.table)


def test_names_are_durable_once_a_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is synced after the file has its name there, and before that the directory
    that has the directory's."""
    named = list[bool]()
    made = list[bool]()
    path = tmp_path / "made" / "file"

    def reached(kind: str, synced: str) -> None:
        if (kind, synced) == ("sync", str(path.parent)):
            named.append(path.exists())
        if (kind, synced) == ("sync", str(tmp_path)):
            made.append(path.parent.exists() and not path.exists())

    monkeypatch.setattr(fsops._failpoints, "reach", reached)
    output = SyncedFileIO().new_output(str(path))
    with output.create() as stream:
        stream.write(b"bytes")
    assert named[-1]
    assert any(made)
    assert open_files(tmp_path) == 0
    assert output.exists()
    assert len(output) == len("bytes")
    with output.to_input_file().open() as read:
        assert read.read() == b"bytes"
