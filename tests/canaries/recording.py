"""Records which tests run which functions, so that a random fault meets the tests that can see it.

``python -m tests.canaries.recording`` runs every file of tests in a process of its own, in which
coverage tells apart the lines of each test; ``--resume`` leaves out the files that are recorded.
Commands that a test starts count for the test. The choice of cheap tests for each function is
written to ``coverage.json``. Spark's own Python workers, which outlive a test, count for the one
that started them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import coverage
import pytest

from tests.canaries import ROOT
from tests.canaries.choices import CHOICES, Choices, functions_of, read_choices

PLACE = ROOT / "build" / "coverage"
RECORDED_AS = "REPUT_RECORDED_AS"
"""The variable of a recorded process: the file that takes what it finds."""
CONTEXT = "REPUT_TEST_CONTEXT"
SETTINGS = """[run]
source = {root}
omit = {root}/tests/*, {root}/bench/*, {root}/docs/*, {root}/build/*
context = ${{{context}}}
data_file = {data}
parallel = true
disable_warnings = no-data-collected, module-not-measured, module-not-imported
patch = _exit
"""
TESTS_OF_A_FUNCTION = 6
SECONDS_OF_A_FUNCTION = 20.0
"""Bounds of a choice; the cheapest test is in it whatever it costs."""

Recorded = dict[str, dict[str, list[str]]]
"""File of the product -> function -> tests that ran it."""


class Recording:
    """A plugin of the process that runs one file of tests."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.seconds: dict[str, float] = defaultdict(float)
        self.settings = place.with_suffix(".rc")
        data = place.with_suffix(".data")
        self.settings.write_text(SETTINGS.format(root=ROOT, context=CONTEXT, data=data), "utf-8")
        os.environ |= {"COVERAGE_PROCESS_START": str(self.settings), CONTEXT: ""}
        self.coverage = coverage.Coverage(config_file=str(self.settings))
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Lines that follow count for this test, in the processes that it starts, too."""
        os.environ[CONTEXT] = name = nodeid.partition("[")[0]
        self.coverage.switch_context(name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a step's time to its test's, whose cases count as one."""
        self.seconds[report.nodeid.partition("[")[0]] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Write what was found, and remove what coverage wrote."""
        self.coverage.stop()
        self.coverage.save()
        data = sorted(self.place.parent.glob(f"{self.place.stem}.data*"))
        both = coverage.Coverage(config_file=str(self.settings))
        with warnings.catch_warnings(category=coverage.exceptions.CoverageWarning, action="ignore"):
            # a process that was killed while it wrote
            both.combine([str(path) for path in data])
        found = {"seconds": self.seconds, "functions": recorded(both.get_data())}
        self.place.write_text(json.dumps(found), "utf-8")
        for path in self.place.parent.glob(f"{self.place.stem}.*"):
            if path != self.place:
                path.unlink()


def recorded(data: coverage.CoverageData) -> Recorded:
    """The functions of which a test ran a line beyond the first, which an import runs, too."""
    found: Recorded = {}
    for measured in sorted(data.measured_files()):
        path = Path(measured)
        lines = data.contexts_by_lineno(measured)
        if not path.is_file() or not lines:
            continue
        for name, node in functions_of(ast.parse(path.read_text("utf-8"))):
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            tests = {test for line in body for test in lines.get(line, ())}
            if tests := tests - {""}:
                found.setdefault(str(path.relative_to(ROOT)), {})[name] = sorted(tests)
    return found


def all_recorded() -> tuple[Mapping[str, Mapping[str, set[str]]], Mapping[str, float]]:
    """All that the last recording of each file found, together, and the seconds of each test."""
    seconds: dict[str, float] = {}
    functions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(PLACE.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        seconds |= found["seconds"]
        for file, names in found["functions"].items():
            for name, tests in names.items():
                functions[file][name] |= set(tests)
    return functions, seconds


def choice(file: str, tests: set[str], seconds: Mapping[str, float]) -> Iterator[str]:
    """The cheapest tests: of the file that has the module's name first, since they look closest."""
    own = f"test_{Path(file).stem}"
    spent = 0.0
    for number, test in enumerate(
        sorted(tests, key=lambda test: (own not in test.partition("::")[0], seconds[test], test))
    ):
        spent += seconds[test]
        if number and (number == TESTS_OF_A_FUNCTION or spent > SECONDS_OF_A_FUNCTION):
            return
        yield test


def chosen() -> Choices:
    """The choice for every function that a test of the last recording ran."""
    functions, seconds = all_recorded()
    return {
        file: {name: list(choice(file, tests, seconds)) for name, tests in sorted(names.items())}
        for file, names in sorted(functions.items())
    }


def kept(old: Choices, new: Choices, again: set[str]) -> Choices:
    """The new choice, and what is known from files of tests that were not recorded again."""
    both = {file: {name: list(of) for name, of in names.items()} for file, names in new.items()}
    for file, names in old.items():
        for name, tests in names.items():
            mine = both.setdefault(file, {}).setdefault(name, [])
            rest = [one for one in tests if one.partition("::")[0] not in again and one not in mine]
            mine += rest[: max(TESTS_OF_A_FUNCTION - len(mine), 0)]
    return both


def write(choices: Choices) -> None:
    """Write ``coverage.json``: tests have numbers there, since each is named often."""
    tests = sorted({one for names in choices.values() for found in names.values() for one in found})
    numbers = {test: number for number, test in enumerate(tests)}
    lines = [
        f"{json.dumps(file)}: {{\n"
        + ",\n".join(
            f"{json.dumps(name)}: {json.dumps([numbers[one] for one in found])}"
            for name, found in sorted(names.items())
            if found
        )
        + "\n}"
        for file, names in sorted(choices.items())
        if any(names.values())
    ]
    text = '{"tests": [\n' + ",\n".join(map(json.dumps, tests)) + '\n],\n"functions": {\n'
    CHOICES.write_text(text + ",\n".join(lines) + "\n}}\n", "utf-8")


def record(test_file: str) -> str:
    """Run one file of tests in a recorded process; a line about it."""
    place = PLACE / (test_file.removesuffix(".py").replace("/", ".") + ".json")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.canaries.recording", "--one", test_file],
        env=os.environ | {RECORDED_AS: str(place)}, cwd=ROOT, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    said = ended.stdout.strip().splitlines()
    return f"{test_file}: {said[-1] if said else ended.stderr.strip()[-300:]}"


def main() -> int:
    """Record the files, two for each core since most of them wait, and write the choice."""
    parser = argparse.ArgumentParser(prog="python -m tests.canaries.recording", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of tests; all of them without any")
    parser.add_argument("--resume", action="store_true", help="leave out what is recorded")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        plugin = Recording(Path(os.environ[RECORDED_AS]))
        options = ["-q", "--no-header", "-p", "no:cacheprovider", "--timeout=900"]
        return int(pytest.main([*options, *arguments.files], plugins=[plugin]))
    PLACE.mkdir(parents=True, exist_ok=True)
    files = arguments.files or [
        str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/**/test_*.py"))
    ]
    if arguments.resume:
        done = {path.stem for path in PLACE.glob("*.json")}
        files = [name for name in files if name.removesuffix(".py").replace("/", ".") not in done]
    with ThreadPoolExecutor((os.cpu_count() or 1) * 2) as pool:
        for number, line in enumerate(pool.map(record, files), 1):
            print(f"{number:4}/{len(files)}  {line}", flush=True)
    new = chosen()
    if arguments.files:
        new = kept(read_choices(), new, set(arguments.files))
    write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
