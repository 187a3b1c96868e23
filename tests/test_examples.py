"""The example of docs/reading.md runs as it is shown, and draws what the log holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from docs.examples.made_up_store import TOPICS, write_store
from store.log import java
from tests.support.cli import ROOT
from tests.support.golden import log_records
from tests.support.pictures import texts_of

MINUTE_MS = 60_000
RUN_EACH = """
import json, runpy, sys
for store in sys.argv[1:]:
    sys.argv[1:] = [store, store + ".svg"]
    table = runpy.run_path("docs/examples/messages_per_minute.py")["table"].set_index("minute")
    cells = table.stack().items()
    print(json.dumps([[int(at.timestamp() * 1000), topic, n] for (at, topic), n in cells if n]))
"""


def test_messages_per_minute(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Counts equal a loop over the plain decoder's records; the pictures are some."""
    made_up = tmp_path / "made-up"
    write_store(made_up)
    stores = (golden("mixed"), made_up)
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *map(str, stores)],
        capture_output=True, text=True, check=False, timeout=300, cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "MPLBACKEND": "agg",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for store, line in zip(stores, done.stdout.splitlines(), strict=True):
        drawn = {(minute, topic): int(count) for minute, topic, count in json.loads(line)}
        wanted = Counter(
            (record.store_timestamp // MINUTE_MS * MINUTE_MS, java.decode(record.topic))
            for record in log_records(store)
        )
        assert drawn == dict(wanted)
        texts = texts_of(Path(f"{store}.svg"))
        assert {topic for _, topic in drawn} <= set(texts)  # as text, whatever their script
        times = [text for text in texts if re.fullmatch(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?", text)]
        assert len(times) >= 2  # an axis of minutes, not of years
    assert {topic for _, topic in drawn} == {java.decode(topic) for topic in TOPICS}
