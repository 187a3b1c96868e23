"""SQL92 expressions against RocketMQ's own filter module, and what a caller sees of errors.

Held against RocketMQ 5.3.3: for thousands of random expressions and messages, whether it refuses
the expression, throws, or gives true, false or null. Not compared: the texts of errors.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from reput.filters import sql92
from tests.interop import rocketmq
from tests.support.selectors import NAMES, NUMBERS, TEXTS, Selectors

CASES = 6000
Case = tuple[str, Mapping[str, str]]


def hexed(text: str) -> str:
    return text.encode().hex() or "."


def properties_word(properties: Mapping[str, str]) -> str:
    pairs = (f"{hexed(name)}={hexed(value)}" for name, value in properties.items())
    return ",".join(pairs) or "-"


def theirs(cases: Sequence[Case]) -> list[str]:
    """RocketMQ's answers: TRUE, FALSE, NULL, INVALID or THROWN."""
    return rocketmq.ask_filters(
        [f"evaluate {hexed(text)} {properties_word(properties)}" for text, properties in cases]
    )


def ours(case: Case) -> str:
    try:
        value = sql92.parse(case[0]).evaluate(case[1])
    except sql92.ExpressionError:
        return "INVALID"
    except sql92.EvaluationError:
        return "THROWN"
    return str("null" if value is None else value).upper()


def agreed(cases: list[Case]) -> list[str]:
    """RocketMQ's answers, each of which is ours."""
    answers = theirs(cases)
    both = zip(cases, answers, map(ours, cases), strict=True)
    assert [each for each in both if each[1] != each[2]] == []
    return answers


@pytest.mark.usefixtures("release")
def test_random_expressions_evaluate_as_in_rocketmq(seed: int) -> None:
    """Every outcome occurs often, and each of them is RocketMQ's."""
    selectors = Selectors(seed)
    cases = [(selectors.expression(), selectors.properties()) for _ in range(CASES)]
    counts = Counter(agreed(cases))
    assert min(counts[outcome] for outcome in ("TRUE", "FALSE", "NULL", "INVALID", "THROWN")) > 100


@pytest.mark.usefixtures("release")
def test_every_pair_of_values_compares_as_in_rocketmq() -> None:
    """Each text with each kind of operand, in both places, under = and <."""
    operands = [*NUMBERS, "- 5", "-2147483648", "- 5.5", "b", "'5'", "''", "TRUE", "(b = 'x')"]
    cases: list[Case] = []
    for text in TEXTS:
        for operand in operands:
            properties = {"a": text, "b": "5"}
            for operator in ("=", "<"):
                cases.append((f"a {operator} {operand}", properties))
                cases.append((f"{operand} {operator} a", properties))
    assert len(agreed(cases)) > 5000


@pytest.mark.usefixtures("release")
def test_oddities_that_the_documentation_names() -> None:
    """The ones in the module's docstring, by RocketMQ and by us."""
    expected = {
        "a = b": "TRUE",
        "a = 0.0": "INVALID",
        "a BETWEEN 5 AND 3": "INVALID",
        "a NOT BETWEEN 5 AND 3": "NULL",
        "a IN (1)": "INVALID",
        "a != 1": "INVALID",
        "five = 5 0x10 'garbage": "TRUE",
        "NOT five = 5": "FALSE",
        "five": "FALSE",
        "(five = 5) = five": "THROWN",
        "five = (five = 5)": "FALSE",
        "a NOT CONTAINS 'x'": "FALSE",
        "word < 5": "THROWN",
        "five = 5.0": "TRUE",
        "big = 5": "THROWN",
        "big = 5.0": "FALSE",
        " OR ".join(["five = 5"] * 3000): "TRUE",
        "'" + "y" * 5000 + "' = word": "FALSE",
        "/*" + "*" * 5000 + "*/ five = 5": "TRUE",
    }
    properties = {"five": "5", "word": "x", "big": "5000000000"}
    cases = [(text, properties) for text in expected]
    assert theirs(cases) == list(expected.values())
    assert [ours(case) for case in cases] == list(expected.values())


@pytest.mark.parametrize(
    ("text", "position"),
    [("", 0), ("a =", 3), ("a @ b", 2), ("a = 'x", 4), ("a in ('x', 5)", 11), ("a and 5", 6),
     ("b > 'x'", 4), ("a = 99999999999999999999", 4), ("'x' in ('x')", 0), ("a = null", 4)],
)  # fmt: skip
def test_an_error_names_its_place(text: str, position: int) -> None:
    """The character where RocketMQ's rule is broken, counted from 1 in the text."""
    with pytest.raises(sql92.ExpressionError, match=f"at character {position + 1}$") as caught:
        sql92.parse(text)
    assert caught.value.position == position


def test_nesting_has_a_bound_that_is_an_error() -> None:
    """No expression, however deep, ends in a RecursionError."""
    fine = "NOT " * (sql92.MAX_DEPTH - 3) + "TRUE"
    assert sql92.parse(fine).evaluate({}) is (sql92.MAX_DEPTH % 2 == 1)
    assert sql92.parse("(" * 5000 + "a = 'x'" + ")" * 5000).matches({"a": "x"})
    deep = ["NOT " * 5000 + "TRUE", "-" * 5000 + " 5 = a", "a" + " = a" * 5000]
    for before, after in (("a = (", ")"), ("b AND (c OR (", "))"), ("a < 1 = (", ")"),
                          ("TRUE <> (", ")")):  # fmt: skip
        deep.append(before * 3000 + "a" + after * 3000)
    for text in deep:
        with pytest.raises(sql92.ExpressionError, match="levels"):
            sql92.parse(text)


def test_a_selector_names_its_properties_and_survives_pickling() -> None:
    """A dispatcher decodes the named properties alone, and Spark sends the selector to a worker."""
    text = "a > 5 AND (b IN ('x') OR NOT c) AND 'k' = 'k'"
    selector = pickle.loads(pickle.dumps(sql92.parse(text)))
    assert selector.names == {"a", "b", "c"}
    assert selector.expression == text
    assert selector.matches({"a": "6", "b": "x"})
    assert not selector.matches({"a": "x", "b": "x"})
    assert set(NAMES).isdisjoint({"k"})
