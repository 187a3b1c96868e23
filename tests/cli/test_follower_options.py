"""The followers that the options of ``run`` ask for: each option is a field of what follows, and is
refused where nothing follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.cli.kafkaoptions import kafka_followers
from reput.cli.tableoptions import delta_followers, iceberg_followers
from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg.table import IcebergTarget
from reput.sinks.kafka.mirror import KafkaArrivalsTarget, KafkaMirrorTarget
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call

FORM = RowForm(include_internal=True, max_inflated_bytes=4096)


@pytest.fixture
def catalogs(tmp_path: Path) -> Path:
    path = tmp_path / "catalogs.toml"
    path.write_text("[lake]\ntype = 'sql'\nuri = 'sqlite://'\n")
    return path


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """Columns of a topic whose bad records have a table of their own."""
    path = tmp_path / "columns.toml"
    path.write_text('on-bad-record = "table"\n[T]\nid = "long"\n')
    return path


def test_a_kafka_mirror_is_what_its_options_say(tmp_path: Path) -> None:
    """Nothing but the mirror without ``--kafka-arrivals``."""
    config = tmp_path / "kafka.toml"
    config.write_text('security_protocol = "SSL"\nsasl_mechanism = "PLAIN"\n')
    (mirror,) = kafka_followers(
        "one:1,two:2", kafka_topics="Orders,Pay*,%RETRY%g", kafka_topic_format="r.{topic}",
        kafka_max_message_bytes="3m", kafka_store_id="site", kafka_config=config,
    )(FORM)  # fmt: skip
    assert isinstance(mirror, KafkaMirrorTarget)
    found = mirror.settings
    assert (found.bootstrap, found.store_id) == ("one:1,two:2", "site")
    assert found.max_message_bytes == 3 << 20
    assert found.client == {"security_protocol": "SSL", "sasl_mechanism": "PLAIN"}
    assert mirror.names.of("Orders") == "r.Orders"
    named = ("Orders", "Payments", "%RETRY%g", "Order", "%RETRY%h", "Orders,Pay*,%RETRY%g")
    assert [topic in mirror.chosen for topic in named] == [True, True, True, False, False, False]
    assert mirror.chosen.form.max_inflated_bytes == FORM.max_inflated_bytes


def test_a_kafka_mirror_without_options_takes_every_topic_of_applications() -> None:
    """It takes those of RocketMQ itself only where the rows are to have them."""
    for form, is_taken in ((DEFAULT_FORM, False), (FORM, True)):
        (mirror,) = kafka_followers("one:1")(form)
        assert isinstance(mirror, KafkaMirrorTarget)
        assert (mirror.settings.store_id, mirror.settings.client) == (None, {})
        assert mirror.settings.max_message_bytes == 32 << 20
        assert mirror.names.of("Orders") == "Orders"
        assert "Orders" in mirror.chosen
        assert ("SCHEDULE_TOPIC_XXXX" in mirror.chosen) is is_taken


@pytest.mark.parametrize("mirrored", [True, False])
def test_notices_have_a_topic_that_no_mirrored_topic_gets(mirrored: bool) -> None:
    """Its name is kept from the mirror, which may be left out."""
    followers = kafka_followers(
        "one:1", kafka_topics="Orders", no_kafka_mirror=not mirrored, kafka_arrivals="notices",
        kafka_store_id="site",
    )(FORM)  # fmt: skip
    *mirrors, arrivals = followers
    assert isinstance(arrivals, KafkaArrivalsTarget)
    assert (arrivals.topic, arrivals.settings.store_id) == ("notices", "site")
    assert [topic in arrivals.chosen for topic in ("Orders", "Other")] == [True, False]
    assert len(mirrors) == mirrored
    for mirror in mirrors:
        assert isinstance(mirror, KafkaMirrorTarget)
        assert mirror.names.of("notices") != "notices"
        assert mirror.names.of("Orders") == "Orders"


@pytest.mark.parametrize(
    "words",
    [
        ("--kafka-topics", "A"), ("--kafka-arrivals", "a"), ("--kafka-store-id", "a"),
        ("--kafka-config", "FILE"), ("--no-kafka-mirror",),
        ("--delta-schema", "FILE"), ("--delta-store-id", "a"), ("--delta-partition-by", "topic"),
        ("--delta-sort-by", "topic"), ("--delta-file-size", "1m"),
        ("--iceberg-config", "FILE"), ("--iceberg-schema", "FILE"), ("--iceberg-store-id", "a"),
        ("--iceberg-partition-by", "day"), ("--iceberg-sort-by", "topic"),
        ("--iceberg-file-size", "1m"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_an_option_of_a_follower_that_is_not_there_is_refused(
    tmp_path: Path, call: Call, words: tuple[str, ...]
) -> None:
    """Each alone: what it asks for would be left out unseen."""
    (tmp_path / "FILE").touch()
    given = [word if word != "FILE" else str(tmp_path / word) for word in words]
    kind = next(one for one in ("kafka", "delta", "iceberg") if one in words[0])
    assert_one_line(call("run", tmp_path, "--once", *given), 2, f"need --{kind} ")


@pytest.mark.parametrize("url", ["TABLE", "TABLE/", "s3://bucket/table", "s3://bucket/table/"])
def test_each_of_several_stores_has_a_table_of_its_own(tmp_path: Path, url: str) -> None:
    """Below the URL, by its name; the only store has the URL itself."""
    place = url.replace("TABLE", str(tmp_path))
    followers = delta_followers(place)
    urls = []
    for name in ("broker-a", "broker-b"):
        (target,) = followers(name, DEFAULT_FORM)
        assert isinstance(target, DeltaTarget)
        urls.append(target.url)
    below = place.rstrip("/")
    assert urls == [f"{below}/broker-a", f"{below}/broker-b"]
    (alone,) = followers(None, DEFAULT_FORM)
    assert isinstance(alone, DeltaTarget) and alone.url == place


def test_a_table_is_what_its_options_say(catalogs: Path, schema: Path) -> None:
    """Its identity, its columns, the form of its rows; and the table of bad records beside it."""
    delta = delta_followers("table", schema, "site", compact_every="1h")(None, FORM)
    iceberg = iceberg_followers("lake.db.t", catalogs, schema, "site", compact_every="1h")(
        None, FORM
    )
    for target, bad in (delta, iceberg):
        assert isinstance(target, DeltaTarget | IcebergTarget)
        assert isinstance(bad, DeltaTarget | IcebergTarget)
        assert (target.store_id, target.form, target.only_bad) == ("site", FORM, False)
        assert (bad.store_id, bad.form, bad.only_bad) == ("site", FORM, True)
        assert target.body_columns is not None
        assert [one.name for one in target.body_columns.fields] == ["json", "badBody"]
        assert target.compact_every_seconds == 3600
    assert [one.description for one in delta] == ["table", "table_bad"]
    assert [one.description for one in iceberg] == ["lake.db.t", "lake.db.t_bad"]


def test_a_table_without_options_is_not_compacted(catalogs: Path) -> None:
    """It has no identity of its own and no columns of bodies; commits come each ten seconds, or
    each minute."""
    for followers, seconds in (
        (delta_followers("table"), 10.0), (iceberg_followers("lake.db.t", catalogs), 60.0),
    ):  # fmt: skip
        (target,) = followers(None, DEFAULT_FORM)
        assert isinstance(target, DeltaTarget | IcebergTarget)
        assert target.compact_every_seconds is None
        assert (target.store_id, target.body_columns, target.form) == (None, None, DEFAULT_FORM)
        assert target.interval_seconds == seconds
    assert delta_followers()(None, DEFAULT_FORM) == iceberg_followers()(None, DEFAULT_FORM) == ()
    assert kafka_followers()(DEFAULT_FORM) == ()


def test_an_identity_is_for_one_store(catalogs: Path, call: Call, tmp_path: Path) -> None:
    """One table would take several for one."""
    several = ("run", "--stores", tmp_path / "s*", "--outputs", tmp_path / "outputs", "--once")
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    table = ("--iceberg", "lake.db.t", "--iceberg-config", catalogs)
    for option in (
        (*table, "--iceberg-store-id", "a"),
        ("--delta", tmp_path / "t", "--delta-store-id", "a"),
        ("--kafka", "x:1", "--kafka-store-id", "a"),
    ):
        name = option[-2]
        assert_one_line(call(*several, *option), 2, f"{name} is for one store")
