"""Applies canaries one at a time to a copy of the tree and runs the tests named for each.

``python -m tests.canaries`` runs all, with a number that many at random, with names (or beginnings
of names) those. ``--resume`` leaves out what was caught before with the same texts and tests. It
ends with 1 where a canary survives.

The tests run in forks of a process that has imported the libraries, and nothing of this project.
The copy has the same place every time, so that compiled kernels are found again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path

from filelock import FileLock

from tests.canaries import ROOT, Canary, read_canaries
from tests.support.seeds import choose_seed

PLACE = ROOT / "build" / "canaries"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "data", ".*_cache", "__pycache__"
)
LIBRARIES = (
    "numpy", "numba", "pandas", "pyarrow.compute", "pyarrow.dataset", "pyspark.sql.functions",
    "pyspark.sql.streaming", "pyspark.sql.datasource", "rich.console", "typer",
)  # fmt: skip
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)
_PASSED, _FAILING, _INTERRUPTED, _NOT_FOUND = 0, 1, 2, 4
"""Exit codes of pytest; a fault that stops the import of a test module gives one of the last two:
where tests are named, they are not found then."""


def chosen(canaries: Sequence[Canary], wanted: Sequence[str]) -> list[Canary]:
    """The canaries that the arguments ask for."""
    if not wanted:
        return list(canaries)
    if len(wanted) == 1 and wanted[0].isdigit():
        seed = choose_seed()
        print(f"seed={seed}")
        count = min(int(wanted[0]), len(canaries))
        return random.Random(seed).sample(list(canaries), count)
    return [canary for canary in canaries if canary.name.startswith(tuple(wanted))]


def copied(tree: Path) -> Path:
    """A fresh copy of the project; files keep their times."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
    return tree


@contextmanager
def applied(canary: Canary, tree: Path) -> Iterator[None]:
    """The fault is in the copy, for the length of the block."""
    path = tree / canary.file
    sound, times = path.read_text("utf-8"), path.stat()
    path.write_text(canary.applied_to(sound), "utf-8")
    try:
        yield
    finally:
        path.write_text(sound, "utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def failing_test(canary: Canary, tree: Path) -> str | None:
    """The first of the canary's tests that fails with the fault; None where all pass."""
    said = tree.with_name("pytest.log")
    with applied(canary, tree):
        child = os.fork()
        if not child:
            _run_tests(canary, tree, said)
        status = os.waitpid(child, 0)[1]
    code, text = os.waitstatus_to_exitcode(status), said.read_text("utf-8", "replace")
    if code == _PASSED:
        return None
    failed = _FAILED.search(text)
    if code > _INTERRUPTED and not (code == _NOT_FOUND and failed):
        raise SystemExit(f"{canary.name}: pytest ends with {code}\n{text}")
    return failed[1] if failed else f"exit code {code}"


def _run_tests(canary: Canary, tree: Path, said: Path) -> None:
    code = -1
    try:
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        ours = ("", str(ROOT), str(ROOT / "src"))
        others = [path for path in sys.path if path not in ours]
        sys.path[:] = [str(tree / "src"), str(tree), *others]
        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        pytest = importlib.import_module("pytest")
        code = pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *canary.tests])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        # what the parent has open is not this process's to close
        os._exit(code & 0xFF)


def main() -> int:
    """Run them and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.canaries", description=__doc__)
    parser.add_argument("wanted", nargs="*", help="a number, or names")
    parser.add_argument("--resume", action="store_true", help="leave out what was caught before")
    arguments = parser.parse_args()
    canaries = chosen(read_canaries(), arguments.wanted)
    PLACE.mkdir(parents=True, exist_ok=True)
    with FileLock(PLACE / "lock", timeout=0):
        survivors = run(canaries, PLACE / "caught.json", resume=arguments.resume)
    print(f"canaries={len(canaries)} survived={len(survivors)}")
    return 1 if survivors else 0


def run(canaries: Sequence[Canary], record: Path, *, resume: bool) -> list[Canary]:
    """Print a line for each and return the survivors; ``record`` has those caught before."""
    caught = json.loads(record.read_text("utf-8")) if record.exists() else {}
    for name in ("pytest", *LIBRARIES):
        with suppress(ImportError):
            importlib.import_module(name)
    tree, survivors = copied(PLACE / "tree"), list[Canary]()
    for number, canary in enumerate(canaries, 1):
        fields = json.loads(json.dumps(astuple(canary)))
        if resume and caught.get(canary.name) == fields:
            continue
        began = time.monotonic()
        failed = failing_test(canary, tree)
        if failed is None:
            survivors.append(canary)
        else:
            record.write_text(json.dumps(caught := caught | {canary.name: fields}), "utf-8")
        result, seconds = "caught" if failed else "survived", time.monotonic() - began
        print(
            f"{number:4}/{len(canaries)}  {result:8}  {seconds:4.0f} s  {canary.name}"
            f"  {failed or ', '.join(canary.tests)}",
            flush=True,
        )
    return survivors


if __name__ == "__main__":
    sys.exit(main())
