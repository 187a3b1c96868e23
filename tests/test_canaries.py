"""The list of canaries fits the tree: each has its place, and the tests that it names exist."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache

from tests.canaries import MUTATED, ROOT, read_canaries, read_equivalents

CANARIES = read_canaries()


@cache
def functions_of(path: str) -> frozenset[str]:
    """Names of a file's test functions."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in names if name.startswith("test_"))


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
        try:
            ast.parse(canary.applied_to((ROOT / canary.file).read_text("utf-8")))
        except SyntaxError:
            broken.append(canary.name)
    assert broken == [], "a fault that is no program proves nothing"


def test_every_canary_names_tests_that_exist() -> None:
    """By file and function; ``make canaries`` shows that they fail."""
    missing = [
        f"{canary.name}: {path}::{name}"
        for canary in CANARIES
        for path, _, name in (test.partition("::") for test in canary.tests)
        if not (ROOT / path).is_file() or name.partition("[")[0] not in functions_of(path)
    ]
    assert missing == []
    assert all(canary.tests and canary.why for canary in CANARIES)


def test_names_are_unique() -> None:
    """``make canaries`` takes them."""
    assert [name for name, count in Counter(c.name for c in CANARIES).items() if count > 1] == []


def test_mutated_modules_and_their_tests_exist() -> None:
    """By file; ``make mutants`` shows what they notice."""
    assert [name for name in MUTATED if not (ROOT / f"{name}.py").is_file()] == []
    tests = {test.partition("::")[0] for tests in MUTATED.values() for test in tests}
    assert [test for test in sorted(tests) if not (ROOT / "tests" / test).is_file()] == []


def test_equivalent_faults_have_their_lines_and_reasons() -> None:
    """One whose line has changed with the code is looked at again, or dropped."""
    for one in read_equivalents():
        lines = (ROOT / one.file).read_text("utf-8").splitlines()
        assert one.line in map(str.strip, lines), one
        assert one.change != one.line, one
        assert one.why, one
        assert one.file.removesuffix(".py") in MUTATED, one
