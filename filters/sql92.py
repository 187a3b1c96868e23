"""SQL92 expressions over message properties, as RocketMQ's filter module understands them.

A standard SQL parser would not do: RocketMQ's own parser and evaluator, oddities included, decide
which messages a consumer gets. The main oddities:

- Logic has three values; unknown, or an error, does not match.
- A property is a string. It is converted to the type of the value that it is compared with, and a
  string that is not a number is an error.
- Two strings are ordered as doubles.
- ``a = b`` is true if both are missing.
- A literal 0.0, a BETWEEN with reversed bounds and an IN of numbers are refused; ``!=`` does not
  exist.
- Text after a complete expression is ignored (``a = 0x10`` is ``a = 0``).

Source: RocketMQ 5.3.3 ``SelectorParser`` and the ``expression`` package around it,
``ExpressionMessageFilter``; formats.md §10. Values are str (every property), bool, None, float
(Double), int (Integer) and _Long. Callers convert bytes to properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import ASCII, IGNORECASE

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from reput.filters.java import compare_doubles, parse_double, parse_integer

GRAMMAR = Path(__file__).with_name("sql92.lark")
MAX_DEPTH = 400
"""Nesting limit, AND and OR chains counted once; RocketMQ's limit is the JVM's stack."""


class ExpressionError(ValueError):
    """RocketMQ refuses the expression (``MQFilterException``)."""

    def __init__(self, reason: str, position: int) -> None:
        """``position`` is the index of the offending character, from 0."""
        self.position = position
        super().__init__(f"SQL92 expression: {reason} at character {position + 1}")


class EvaluationError(Exception):
    """RocketMQ throws while it evaluates; the message then does not match."""


class _Long(int):
    """Java's Long: an integer literal outside the range of int, or its negation."""


Value = str | bool | int | float | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]


@dataclass(frozen=True, slots=True)
class Selector:
    """One compiled expression; evaluation has no side effects, so threads may share it."""

    expression: str
    names: frozenset[str]
    """Properties that it reads, all ASCII."""
    _evaluate: Evaluate

    def evaluate(self, properties: Properties) -> bool | None:
        """Return true, false or unknown (None); raises EvaluationError where RocketMQ throws."""
        value = self._evaluate(properties)
        return value if isinstance(value, bool) else None

    def matches(self, properties: Properties) -> bool:
        """Whether a consumer gets the message; only a true result counts."""
        try:
            return self.evaluate(properties) is True
        except EvaluationError:
            return False

    def __reduce__(self) -> tuple[Callable[[str], Selector], tuple[str]]:
        return parse, (self.expression,)


def parse(expression: str) -> Selector:
    """Compile an expression (``SelectorParser.parse``); raises ExpressionError."""
    root = _boolean(_parse_tree(expression))
    return Selector(expression, root.names, root.evaluate)


def _parse_tree(expression: str) -> _Node:
    parser = _parser().parse_interactive(expression)
    unexpected: Token | None = None
    try:
        parser.exhaust_lexer()
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        raise ExpressionError(f"{expression[position]!r} begins no token", position) from None
    except UnexpectedToken as error:
        unexpected = error.token
    try:
        root: _Node = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken:
        if unexpected is None:
            raise ExpressionError("unexpected end", len(expression)) from None
        raise ExpressionError(f"unexpected {str(unexpected)!r}", _start(unexpected)) from None
    return root


@dataclass(frozen=True, slots=True)
class _Node:
    """One node of an expression, with the kinds that RocketMQ's checks distinguish."""

    evaluate: Evaluate
    position: int
    """Index of its first character."""
    names: frozenset[str] = frozenset()
    depth: int = 1
    is_property: bool = False
    is_constant: bool = False
    is_boolean: bool = False
    value: Value = None
    """Value of a constant."""


def _constant(value: Value, position: int) -> _Node:
    is_boolean = value is None or isinstance(value, bool)
    return _Node(lambda _: value, position, is_constant=True, is_boolean=is_boolean, value=value)


def _composed(evaluate: Evaluate, *parts: _Node, is_boolean: bool = True) -> _Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise ExpressionError(f"more than {MAX_DEPTH} levels", parts[0].position)
    names = frozenset[str]().union(*(part.names for part in parts))
    return _Node(evaluate, parts[0].position, names, depth, is_boolean=is_boolean)


def _boolean(node: _Node) -> _Node:
    """``SelectorParser.asBooleanExpression``: a property is cast to boolean."""
    if node.is_boolean:
        return node
    if not node.is_property:
        raise ExpressionError("a condition is expected, not a value", node.position)

    def cast(properties: Properties) -> Value:
        # properties are strings, and RocketMQ casts a string to false
        return None if node.evaluate(properties) is None else False

    return _composed(cast, node)


def _check_ordered(node: _Node) -> _Node:
    """``ComparisonExpression.checkLessThanOperand``."""
    if node.is_boolean or (node.is_constant and isinstance(node.value, str)):
        raise ExpressionError("only numbers and properties can be ordered", node.position)
    return node


def _text(token: Token) -> str:
    """Value of a string literal; '' stands for one quote."""
    return token[1:-1].replace("''", "'")


def _start(token: Token) -> int:
    return token.start_pos or 0


class _Compiler(Transformer[Token, _Node]):
    """Turn grammar rules into nodes, called as the parser reduces; raises ExpressionError."""

    def any_true(self, parts: list[_Node]) -> _Node:
        return _chain(parts, True)

    def all_true(self, parts: list[_Node]) -> _Node:
        return _chain(parts, False)

    @v_args(inline=True)
    def equal(self, left: _Node, _: Token, right: _Node) -> _Node:
        for node in (left, right):
            if node.is_constant and node.value is None:
                raise ExpressionError("NULL cannot be compared; write IS NULL", node.position)
        if left.is_constant and left.is_boolean and right.is_constant and not right.is_boolean:
            raise ExpressionError("TRUE and FALSE compare with no such value", right.position)
        return _equality(left, right)

    @v_args(inline=True)
    def not_equal(self, left: _Node, token: Token, right: _Node) -> _Node:
        return _inverted(self.equal(left, token, right))

    @v_args(inline=True)
    def is_null(self, node: _Node) -> _Node:
        return _equality(node, _constant(None, node.position))

    @v_args(inline=True)
    def is_not_null(self, node: _Node) -> _Node:
        return _inverted(_equality(node, _constant(None, node.position)))

    @v_args(inline=True)
    def order(self, left: _Node, operator: Token, right: _Node) -> _Node:
        return _ordering(left, str(operator), right)

    @v_args(inline=True)
    def search(self, node: _Node, operator: Token, literal: Token) -> _Node:
        return _search(node, operator.type, _text(literal), True)

    @v_args(inline=True)
    def not_search(self, node: _Node, operator: Token, literal: Token) -> _Node:
        return _search(node, operator.type, _text(literal), False)

    @v_args(inline=True)
    def between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        parts = [_ordering(node, ">=", low), _ordering(node, "<=", high)]
        if low.is_constant and high.is_constant and _compare(high.value, low.value) < 0:
            raise ExpressionError("BETWEEN wants its lower bound first", low.position)
        return _chain(parts, False)

    @v_args(inline=True)
    def not_between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        return _chain([_ordering(node, "<", low), _ordering(node, ">", high)], True)

    @v_args(inline=True)
    def in_list(self, node: _Node, texts: frozenset[str]) -> _Node:
        return _membership(node, texts, True)

    @v_args(inline=True)
    def not_in_list(self, node: _Node, texts: frozenset[str]) -> _Node:
        return _membership(node, texts, False)

    def strings(self, literals: list[Token]) -> frozenset[str]:
        return frozenset(map(_text, literals))

    @v_args(inline=True)
    def negate(self, node: _Node) -> _Node:
        return _negated(node)

    @v_args(inline=True)
    def invert(self, node: _Node) -> _Node:
        return _inverted(_boolean(node))

    @v_args(inline=True)
    def string(self, literal: Token) -> _Node:
        return _constant(_text(literal), _start(literal))

    @v_args(inline=True)
    def decimal(self, literal: Token) -> _Node:
        value = parse_integer(literal.rstrip("lL"), 64)
        if value is None:
            raise ExpressionError(f"{literal} is beyond a long", _start(literal))
        return _constant(value if value < 1 << 31 else _Long(value), _start(literal))

    @v_args(inline=True)
    def double(self, literal: Token) -> _Node:
        value = float(literal)
        if not 0 < value < float("inf"):
            raise ExpressionError(f"{literal} is beyond a positive double", _start(literal))
        return _constant(value, _start(literal))

    @v_args(inline=True)
    def true(self, literal: Token) -> _Node:
        return _constant(True, _start(literal))

    @v_args(inline=True)
    def false(self, literal: Token) -> _Node:
        return _constant(False, _start(literal))

    @v_args(inline=True)
    def null(self, literal: Token) -> _Node:
        return _constant(None, _start(literal))

    @v_args(inline=True)
    def property(self, token: Token) -> _Node:
        name = str(token)
        return _Node(
            lambda properties: properties.get(name),
            _start(token),
            frozenset((name,)),
            is_property=True,
        )


@cache
def _parser() -> Lark:
    """Built at first use, because it takes some tens of milliseconds."""
    return Lark(
        GRAMMAR.read_text("ascii"),
        parser="lalr",
        lexer="basic",
        transformer=_Compiler(),
        g_regex_flags=ASCII | IGNORECASE,
    )


def _chain(parts: Iterable[_Node], decisive: bool) -> _Node:
    """``LogicExpression``: OR (decided by true) or AND (by false), left to right."""
    nodes = [_boolean(part) for part in parts]
    evaluators = [node.evaluate for node in nodes]

    def evaluate(properties: Properties) -> Value:
        result: bool | None = not decisive
        for part in evaluators:
            value = part(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _composed(evaluate, *nodes)


def _inverted(node: _Node) -> _Node:
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _composed(evaluate, node)


def _negated(node: _Node) -> _Node:
    """``UnaryExpression.createNegate``: unknown for anything but a number."""
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if value is None or isinstance(value, bool | str):
            return None
        return _Long(-value) if isinstance(value, _Long) else -value

    return _composed(evaluate, node, is_boolean=False)


def _equality(left: _Node, right: _Node) -> _Node:
    """``ComparisonExpression.doCreateEqual``: two missing values are equal."""
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        a, b = left_of(properties), right_of(properties)
        if a is None:
            return True if b is None else None
        return b is not None and _compare(a, b) == 0

    return _composed(evaluate, left, right)


_ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
}


def _ordering(left: _Node, operator: str, right: _Node) -> _Node:
    left_of, right_of = _check_ordered(left).evaluate, _check_ordered(right).evaluate
    holds = _ORDERS[operator]

    def evaluate(properties: Properties) -> Value:
        a = left_of(properties)
        if a is None:
            return None
        b = right_of(properties)
        if b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            return holds(compare_doubles(_number(a, 0.0), _number(b, 0.0)))
        return holds(_compare(a, b))

    return _composed(evaluate, left, right)


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _search(node: _Node, operator: str, text: str, expected: bool) -> _Node:
    """CONTAINS and its like: a non-string or an empty text gives false, with or without NOT."""
    inner, search = node.evaluate, _SEARCHES[operator]

    def evaluate(properties: Properties) -> Value:
        if not text:
            return False
        value = inner(properties)
        return isinstance(value, str) and search(value, text) is expected

    return _composed(evaluate, node)


def _membership(node: _Node, texts: frozenset[str], expected: bool) -> _Node:
    if not node.is_property:
        raise ExpressionError("IN wants a property on its left", node.position)
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else (value in texts) is expected

    return _composed(evaluate, node)


def _compare(left: Value, right: Value) -> int:
    """``ComparisonExpression.__compare``: negative, 0 or positive; -1 also if types differ.

    Raises EvaluationError for a string that is not a number, and for a boolean with a string on
    its right, which RocketMQ casts wrongly.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return 0 if left == right else 1
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        left = _number(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise EvaluationError("a condition cannot be compared with a string on its right")
        right = _number(right, left)
    if left is None or right is None or isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _number(text: str, like: int | float | None) -> int | float:
    """Convert a string to the type of the number that it is compared with."""
    if isinstance(like, float):
        value: int | float | None = parse_double(text)
    else:
        value = parse_integer(text, 64 if isinstance(like, _Long) else 32)
    if value is None:
        raise EvaluationError(f"{text!r} is not a number of the type it is compared with")
    return value
