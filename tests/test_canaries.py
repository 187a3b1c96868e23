"""The list of canaries fits the tree: each has its place, and the tests that it names exist."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.canaries import ROOT, Canary, read_canaries, read_equivalents
from tests.canaries.__main__ import failing_test
from tests.canaries.choices import Chooser, exists, read_choices

CANARIES = read_canaries()
PARSERS: dict[str, Callable[[str], object]] = {
    ".py": ast.parse, ".yml": lambda text: [*yaml.safe_load_all(text)],
}  # fmt: skip


def test_every_canary_has_one_place_and_changes_it() -> None:
    """A canary whose text has moved with the code is adapted, or dropped."""
    assert len(CANARIES) >= 120
    wrong = {
        canary.name: count
        for canary in CANARIES
        if (count := (ROOT / canary.file).read_text("utf-8").count(canary.old)) != 1
    }
    assert wrong == {}
    assert [canary.name for canary in CANARIES if canary.old == canary.new] == []
    broken = []
    for canary in CANARIES:
        text = canary.applied_to((ROOT / canary.file).read_text("utf-8"))
        # recipes for operators have canaries too
        parse = PARSERS.get(Path(canary.file).suffix, str)
        try:
            parse(text)
        except (SyntaxError, yaml.YAMLError):
            broken.append(canary.name)
    assert broken == [], "a fault that is no program proves nothing"


def test_every_canary_names_tests_that_exist() -> None:
    """By file and function; ``make canaries`` shows that they fail."""
    missing = [
        f"{canary.name}: {test}" for canary in CANARIES for test in canary.tests if not exists(test)
    ]
    assert missing == []
    assert all(canary.tests and canary.why for canary in CANARIES)


def test_no_canary_needs_an_extended_test() -> None:
    """So that what notices a fault runs in ``make test``."""
    extended = {
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one) == "pytest.mark.extended" for one in node.decorator_list)
    }
    assert len(extended) >= 100
    named = {test.partition("[")[0] for canary in CANARIES for test in canary.tests}
    assert sorted(named & extended) == []


def test_names_are_unique() -> None:
    """``make canaries`` takes them."""
    assert [name for name, count in Counter(c.name for c in CANARIES).items() if count > 1] == []


def test_a_random_fault_in_most_places_meets_tests_that_exist() -> None:
    """The recording is made anew from time to time, so that a few tests may have gone since."""
    chooser = Chooser.of(read_choices())
    tests = {test for of in chooser.choices.values() for found in of.values() for test in found}
    gone = [test for test in tests if not exists(test)]
    assert len(gone) <= len(tests) / 20, gone
    places = [
        (file, body.start) for file, functions in chooser.functions.items() for _, body in functions
    ]
    unmet = [place for place in places if not chooser.tests(*place)]
    assert len(unmet) <= len(places) / 20, unmet


def test_a_fault_without_known_tests_meets_those_of_its_package() -> None:
    """All of the tests would take an hour."""
    chooser = Chooser.of({})
    found = chooser.tests("sinks/iceberg/datafiles.py", 1)
    assert "tests/sinks/test_icebergupkeep.py" in found
    assert "tests/sinks/test_kafkarecords.py" not in found


def test_a_fault_that_stops_an_import_is_noticed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a test that is named; a name that no test has is a wrong list."""
    tree, test = tmp_path / "tree", "test_thing.py::test_value"
    tree.mkdir()
    (tree / "thing.py").write_text("VALUE = 1\n")
    text = "from thing import VALUE\n\n\ndef test_value():\n    assert VALUE\n"
    (tree / "test_thing.py").write_text(text)
    canary = Canary("name", "why", "thing.py", "= 1", "= gone", (test,))
    with capfd.disabled():
        assert failing_test(canary, tree) == "test_thing.py"
        assert failing_test(replace(canary, new="= 0"), tree) == test
        assert failing_test(replace(canary, new="= 2"), tree) is None
        with pytest.raises(SystemExit, match=r"test_thing\.py::test_gone"):
            failing_test(replace(canary, new="= 2", tests=("test_thing.py::test_gone",)), tree)


def test_equivalent_faults_have_their_lines_and_reasons() -> None:
    """One whose line has changed with the code is looked at again, or dropped."""
    for one in read_equivalents():
        lines = (ROOT / one.file).read_text("utf-8").splitlines()
        assert one.line in map(str.strip, lines), one
        assert one.change != one.line, one
        assert one.why, one
