"""The list of canaries fits the tree: each has its place, and the tests that it names exist."""

from __future__ import annotations

import ast
from collections import Counter

from tests.canaries import ROOT, read_canaries, read_equivalents
from tests.canaries.choices import Chooser, exists, read_choices

CANARIES = read_canaries()


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
        f"{canary.name}: {test}" for canary in CANARIES for test in canary.tests if not exists(test)
    ]
    assert missing == []
    assert all(canary.tests and canary.why for canary in CANARIES)


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


def test_equivalent_faults_have_their_lines_and_reasons() -> None:
    """One whose line has changed with the code is looked at again, or dropped."""
    for one in read_equivalents():
        lines = (ROOT / one.file).read_text("utf-8").splitlines()
        assert one.line in map(str.strip, lines), one
        assert one.change != one.line, one
        assert one.why, one
