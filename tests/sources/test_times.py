"""Times that readers of both sources give: each form of one time selects the same messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from reput.sources.options import timestamp_ms
from tests.sources.test_queue_rows import batch_reader, rows_of
from tests.sources.test_rows import reference


def forms(at: int) -> list[str]:
    """A time in ms, as people write it."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at)
    shanghai = moment.astimezone(ZoneInfo("Asia/Shanghai"))
    here = moment.astimezone().replace(tzinfo=None)
    return [
        str(at), moment.isoformat(), moment.isoformat().replace("+00:00", "Z"),
        moment.replace(tzinfo=None).isoformat(), shanghai.isoformat(),
        f"{shanghai.replace(tzinfo=None).isoformat()} Asia/Shanghai", f"{here.isoformat()} local",
    ]  # fmt: skip


def test_all_forms_of_a_time_select_the_same_messages(golden: Callable[[str], Path]) -> None:
    """At the border, to the millisecond."""
    store = golden("plain")
    times = sorted(found.store_timestamp for found in reference(store))
    at = times[len(times) // 2]
    options = {"startingOffsetsByTimestampStrategy": "latest"}
    for border, is_later in ((at, False), (at + 1, True)):
        expected = sum(time > at if is_later else time >= at for time in times)
        for form in forms(border):
            assert timestamp_ms(form) == border
            rows = rows_of(batch_reader(store, startingTimestamp=form, **options))
            assert len(rows) == expected, form


def test_the_first_of_all_times_is_one() -> None:
    """The epoch, which selects everything."""
    assert {timestamp_ms(form) for form in forms(0)} == {0}


@pytest.mark.parametrize(
    "text", ["", "yesterday", "1969-12-31T23:59Z", "2026-13-01", "2026-01-31T12:30Z Europe/Berlin",
             "2026-01-31T12:30 Nowhere/City", "-1", "1234567890123456", "99999-01-01"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    """The line says what is one."""
    with pytest.raises(ValueError, match=r"milliseconds since the epoch, or a time such as"):
        timestamp_ms(text)
