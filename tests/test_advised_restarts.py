"""Each text of the product that tells people to do the same again is quoted by a test, which brings
about the state of that text and follows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from tests.test_tidy import PRODUCT, sources

ADVICE = re.compile(r"\b(?:start|run|call|try)(?: it| them| one| the \w+| reput \w+)? again\b")
_VALUE = "\0"
_WILDCARD = re.compile(rf"\.[*+]\??|\\[SdwW][*+]?|{_VALUE}")


def texts(*programs: str) -> Iterator[str]:
    """The texts in code, and no docstrings; in an f-string each value is a zero character."""
    for tree in map(ast.parse, programs):
        parts: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                parts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts.update(node.values)
                yield "".join(str(part.value) if isinstance(part, ast.Constant)
                              else _VALUE for part in node.values)  # fmt: skip
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from () if node in parts else (node.value,)


def unquoted(advice: Iterable[str], tests: Iterable[str]) -> list[str]:
    """The advice of which no test has a piece, with those words, that no other text has; a
    test's patterns are taken apart at their wildcards."""
    found = {text for text in advice if ADVICE.search(text)}
    quoted = set[str]()
    for piece in {piece for text in tests for piece in _WILDCARD.split(text)}:
        if ADVICE.search(piece):
            holders = {text for text in found if piece.replace("\\", "").strip("^$\n") in text}
            quoted |= holders if len(holders) == 1 else set()
    return sorted(found - quoted)


@pytest.mark.extended
def test_each_advice_to_do_it_again_is_quoted() -> None:
    advice, tests = (
        texts(*(path.read_text("utf-8") for path in sources(*folders)))
        for folders in (PRODUCT, ["tests"])
    )
    assert unquoted(advice, tests) == []


def test_the_check_sees_what_no_test_quotes() -> None:
    """A canary: a quotation without the advice, or one that two texts have, is none."""
    advice = [
        *texts('"""Start it again."""\nx = f"{y}: bad; start it again"\nz = "start it again"')
    ]
    assert advice == ["\0: bad; start it again", "start it again"]
    assert unquoted(advice, ["bad; ", "start it again"]) == advice
    assert unquoted(advice, [r"^\S+: bad; start it again$", "start it again"]) == advice[1:]
