"""Short commands load only what they need, which decides how long they take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HEAVY = {"duckdb", "kafka", "lark", "numba", "pandas", "pyarrow", "pydantic", "pyspark"}
LOADED = """
import json, os, sys
from reput.__main__ import main
sys.argv = sys.argv[1:]
try:
    main()
finally:
    threads = len(os.listdir("/proc/self/task"))
    print(json.dumps({"threads": threads, "modules": list(sys.modules)}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "status STORE",
        "status STORE --topic Orders",
        "get STORE Orders 0 0",
        "groups STORE",
    ],
)
def test_a_short_command_loads_nothing_heavy(golden: Callable[[str], Path], words: str) -> None:
    """Nor rich's console but for help, nor a thread for each core for what multiplies matrices."""
    store = str(golden("broker"))
    call = ["reput", *(store if word == "STORE" else word for word in words.split())]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *call],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found = json.loads(done.stderr)
    heavy = HEAVY if words == "--help" else HEAVY | {"rich.console"}
    assert not heavy.intersection(found["modules"])
    assert found["threads"] == 1
    assert done.stdout
