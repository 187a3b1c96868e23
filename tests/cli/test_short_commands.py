"""Short commands load only what they need, which decides how long they take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HEAVY = {"duckdb", "kafka", "lark", "numba", "pandas", "pyarrow", "pydantic", "pyspark"}
RICH = {"rich.console", "rich.table"}
LOADED = """
import json, os, sys
from reput.__main__ import main
sys.argv = sys.argv[1:]
before = []
class Stdout:
    def __getattr__(self, name):
        before.extend(sys.modules if name in ("write", "buffer") and not before else ())
        return getattr(sys.__stdout__, name)
sys.stdout = Stdout()
try:
    main()
finally:
    threads = len(os.listdir("/proc/self/task"))
    found = {"threads": threads, "before": before, "modules": list(sys.modules)}
    print(json.dumps(found), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "status STORE",
        "status STORE --topic Orders",
        "status STORE --json",
        "get STORE Orders 0 0",
        "groups STORE",
    ],
)
def test_a_short_command_loads_nothing_heavy(golden: Callable[[str], Path], words: str) -> None:
    """Nor a thread for each core for what multiplies matrices. rich's console and tables are loaded
    for help, otherwise only for a table, after the line above it is printed."""
    store = str(golden("broker"))
    call = ["reput", *(store if word == "STORE" else word for word in words.split())]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *call],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found = json.loads(done.stderr)
    assert not HEAVY.intersection(found["modules"])
    if words != "--help":
        assert found["before"]
        assert not RICH.intersection(found["before"])
        assert RICH.issubset(found["modules"]) == (
            "\N{BOX DRAWINGS LIGHT HORIZONTAL}" in done.stdout
        )
    assert found["threads"] == 1
    assert done.stdout
