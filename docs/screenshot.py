"""The picture of ``reput top`` (docs/top.svg), drawn by its own code; ``docs.generate`` writes it.

The figures are made up, so that every run of ``make docs`` gives the same picture.
"""

from __future__ import annotations

import io
import re

from rich.console import Console

from reput.cli.topview import TopView
from reput.upkeep.watch.outputs import Reading, WatchedQueue
from reput.upkeep.watch.status import FollowerStatus, Lag

COLUMNS, LINES = 80, 24
TOPICS = {"Orders": 2510.0, "Payments": 1240.0, "%RETRY%billing": 3.5}
"""Topic -> messages per second of each of its queues."""
_FONTS = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)
"""The addresses of fonts: the picture is shown in the reader's own."""


def picture() -> str:
    """The screen as SVG."""
    queues = tuple(
        WatchedQueue(topic, queue, 1_204_000, 1_204_000 + round(1800 * rate), rate + queue)
        for topic, rate in TOPICS.items()
        for queue in range(4)
    )
    end = 47_244_640_256
    reading = Reading(
        taken=1_769_862_600.0, log_min=38_654_705_664, log_end=end, watermark=end - 1_204_224,
        watermark_age=0.1, lag=Lag(1_204_224, 4014, 0.3), differs=None, writer_pid=4711,
        unstopped_run=None,
        appended_rate=4_502_000.0, dispatched_rate=4_499_000.0, queues=queues, ledger=(),
        followers=(FollowerStatus("delta", "table", lag_bytes=9_120_000),), batches=(), damage=(),
        stages=None, unreadable={},
    )  # fmt: skip
    console = Console(
        record=True, width=COLUMNS, height=LINES, file=io.StringIO(), force_terminal=True,
        color_system="truecolor", highlight=False, _environ={},
    )  # fmt: skip
    console.print(TopView("/data/queues").picture(reading, COLUMNS, LINES))
    return _FONTS.sub("", console.export_svg(title="reput top"))
