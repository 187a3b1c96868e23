"""Times and durations as options take them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reput.cli import texts
from reput.cli.options import time_option_ms
from reput.cli.tableoptions import delta_followers, iceberg_followers
from reput.sinks.delta.table import DeltaTarget
from reput.sinks.iceberg.table import IcebergTarget
from reput.store.errors import UsageError
from reput.store.rows.rowform import DEFAULT_FORM
from tests.support.cli import Call

NOON_UTC = 1_769_860_800_000
"""2026-01-31T12:00:00Z."""


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z", "2026-01-31T12:00", "2026-01-31 12:00Z", "2026-01-31T20:00+08:00",
        "2026-01-31T20:00 Asia/Shanghai", "2026-01-31T13:00 Europe/Berlin", "1769860800000",
    ],
)  # fmt: skip
def test_zones_and_numbers(text: str) -> None:
    """One moment, said in all ways; UTC without a zone."""
    assert time_option_ms("--begin", text) == NOON_UTC
    assert texts.time_text(NOON_UTC) == "2026-01-31T12:00:00.000Z"
    assert time_option_ms("--begin", texts.time_text(NOON_UTC)) == NOON_UTC


def test_local_time_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are in the zone that `TZ` names."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert time_option_ms("--begin", "2026-01-31T21:00 local") == NOON_UTC
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "text"),
    [("America/New_York", "9999-12-31T23:59 local"), ("Asia/Tokyo", "0001-01-01T00:00 local")],
)
def test_a_moment_that_no_clock_shows(
    monkeypatch: pytest.MonkeyPatch, zone: str, text: str
) -> None:
    """In UTC it lies beyond the first or the last year."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with pytest.raises(UsageError, match=r"--begin is .*it must be one of"):
            time_option_ms("--begin", text)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_wrong_time_is_an_error_of_its_own_option(tmp_path: Path, call: Call) -> None:
    """Each command that takes times is tried."""
    (store := tmp_path / "store" / "commitlog").mkdir(parents=True)
    for command, *wrong in (
        (("dlq", "list", tmp_path), "--from-time", "--to-time"),
        (("export", store.parent, tmp_path / "new"), "--from-time", "--to-time"),
        (("query", store.parent, "T", "--key", "k"), "--begin", "--end"),
        (("tail", store.parent, "T"), "--from-time"),
        (("groups", "reset", store.parent, "g", "--topic", "T"), "--to-time"),
        (("checkpoints", "rewind", store.parent), "--to-time"),
    ):
        for option in wrong:
            done = call(*command, option, "noon")
            assert (done.returncode, f"{option} is 'noon'" in done.stderr) == (2, True), done


@pytest.mark.parametrize("ms", [0, 1, 1001, 1_769_860_800_029])
def test_a_time_of_a_row_is_shown_to_the_millisecond(ms: int) -> None:
    """As a float it may be a little less."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    assert texts.shown(moment) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_seconds_are_taken_and_said_to_be_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """A number of ten digits."""
    assert time_option_ms("--begin", "1769860800") == NOON_UTC
    assert "taken for seconds since the epoch: 2026-01-31T12:00:00.000Z" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "ago"), [("-1h", 3_600_000), ("1h", 3_600_000), ("-2d", 172_800_000)]
)
def test_before_now(text: str, ago: int) -> None:
    """Counted from the call."""
    before = time.time_ns() // 1_000_000
    found = time_option_ms("--begin", text) + ago
    assert before <= found <= time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-01-31T12:00 Nowhere/Land", "2026-01-31T12:00Z Asia/Tokyo", "-h"]
)
def test_what_is_no_time(text: str) -> None:
    """One line that names the option and what it takes."""
    with pytest.raises(UsageError, match=r"--begin is .*; it must be one of 2026-01-31T12:30Z, "):
        time_option_ms("--begin", text)


@pytest.mark.parametrize("name", [None, "one-of-several"])
@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("10s", 10.0), ("2m", 120.0)])
def test_a_table_is_committed_to_at_the_interval_that_was_given(
    tmp_path: Path, name: str | None, text: str, seconds: float
) -> None:
    every = {"compact_every": text}
    (target,) = delta_followers("table", delta_interval=text, **every)(name, DEFAULT_FORM)
    assert isinstance(target, DeltaTarget)
    assert (target.interval_seconds, target.compact_every_seconds) == (seconds, seconds)
    catalogs = tmp_path / "catalogs.toml"
    catalogs.write_text("[lake]\ntype = 'sql'\nuri = 'sqlite://'\n")
    (iceberg,) = iceberg_followers("lake.db.t", catalogs, iceberg_interval=text, **every)(
        name, DEFAULT_FORM
    )
    assert isinstance(iceberg, IcebergTarget)
    assert (iceberg.interval_seconds, iceberg.compact_every_seconds) == (seconds, seconds)
    assert iceberg.description == ("lake.db.t" if name is None else f"lake.db.t_{name}")
