"""Random SQL92 expressions and properties, sound and malformed, from a seed.

Values are picked where conversions turn: bounds of Java's types, texts that only Java or only
Python takes for numbers, strings with quotes, missing properties. About half of the expressions
follow the grammar loosely (types are mixed as they come), the rest has tokens dropped, doubled or
foreign.
"""

from __future__ import annotations

import random

NAMES = ("a", "b", "_c", "$d", "TAGS", "null_", "In1")
TEXTS = (
    "", "x", "it's", "abc", "ab", "c", "true", "TRUE", "false", "null", "5", "5.0", "-3", "+5",
    " 7 ", "007", "7\t", "1e3", "1d", "2.5F", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "nan",
    "0", "-0", "0.0", "-0.0", "0x10", "0x1p3", "0x.8P1d", "0x1p99999", "-0x1p99999", "1_000",
    "１２", "٣", "𝟏",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "1e400", "1e-400", "4.9e-324", ".5", "5.", ".",
    "e5", "1e", "中文", "a中", "\u00a05", "\x015", "tTrue", "0" * 30 + "9", "9" * 400,
)  # fmt: skip
NUMBERS = (
    "0", "1", "5", "7", "3", "9", "5l", "5L", "2147483647", "2147483648", "2147483649",
    "9223372036854775807", "9223372036854775808", "5.0", "5.", ".5", "5e3", "5E-3", "5.e+1", "0.0",
    "1e400", "1e-400", "1.7976931348623157e308", "4.9e-324", "007", "0x10", "5f", "1e",
)  # fmt: skip
ORDERS = (">", ">=", "<", "<=")
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
FOREIGN = (
    "!=", "==", "=>", "@", "#", "'", "''", '"', "/", "*", "/* c */", "/* * / **/", "/*", "-- c\n",
    "-- c", "--", "\u017f", "\u212a", "é", "中", "LIKE", "(", ")", ",", ".", "a.b", "\x0b",
    "\u00a0", "\0", "NOT", "IS", "NULL", "BETWEEN", "AND", "OR", "IN", "TRUE", "+", "-", "5",
    "'x'", "a",
)  # fmt: skip


class Selectors:
    """Draws from one random source."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def properties(self) -> dict[str, str]:
        """Some of the names, each with any text."""
        names = self.rng.sample(NAMES, self.rng.randrange(len(NAMES) + 1))
        return {name: self.rng.choice(TEXTS) for name in names}

    def expression(self) -> str:
        """An expression, or what is left of one."""
        tokens = self._condition(self.rng.randrange(1, 4)).split("\n")
        if self.rng.random() < 0.35:
            for _ in range(self.rng.randrange(1, 3)):
                at = self.rng.randrange(len(tokens) + 1)
                choice = self.rng.randrange(3)
                if choice == 0 and at < len(tokens):
                    del tokens[at]
                elif choice == 1 and at < len(tokens):
                    tokens.insert(at, tokens[at])
                else:
                    tokens.insert(at, self.rng.choice(FOREIGN))
        text = self.rng.choice((" ", " ", " ", "", "\t", "\n", "/**/")).join(tokens)
        return text if self.rng.random() < 0.97 else text[: self.rng.randrange(len(text) + 1)]

    # tokens are joined by line feeds until the end

    def _condition(self, depth: int) -> str:
        pick, rng = self.rng.random(), self.rng
        if depth <= 0 or pick < 0.1:
            return self._predicate(0)
        if pick < 0.5:
            word = self._word(rng.choice(("AND", "OR")))
            return f"{self._condition(depth - 1)}\n{word}\n{self._condition(depth - 1)}"
        if pick < 0.6:
            return f"{self._word('NOT')}\n{self._condition(depth - 1)}"
        if pick < 0.75:
            return f"(\n{self._condition(depth - 1)}\n)"
        return self._predicate(depth)

    def _predicate(self, depth: int) -> str:
        pick, rng = self.rng.random(), self.rng
        left = self._operand(depth)
        maybe_not = f"\n{self._word('NOT')}" if rng.random() < 0.4 else ""
        if pick < 0.25:
            return f"{left}\n{rng.choice(('=', '<>'))}\n{self._operand(depth)}"
        if pick < 0.5:
            return f"{left}\n{rng.choice(ORDERS)}\n{self._operand(depth)}"
        if pick < 0.6:
            return f"{left}\n{self._word('IS')}{maybe_not}\n{self._word('NULL')}"
        if pick < 0.72:
            bounds = f"{self._operand(0)}\n{self._word('AND')}\n{self._operand(0)}"
            return f"{left}{maybe_not}\n{self._word('BETWEEN')}\n{bounds}"
        if pick < 0.84:
            texts = "\n,\n".join(self._string() for _ in range(rng.randrange(1, 7)))
            return f"{left}{maybe_not}\n{self._word('IN')}\n(\n{texts}\n)"
        if pick < 0.97:
            return f"{left}{maybe_not}\n{self._word(rng.choice(SEARCHES))}\n{self._string()}"
        return left

    def _operand(self, depth: int) -> str:
        pick, rng = self.rng.random(), self.rng
        if pick < 0.55:
            return rng.choice(NAMES)
        if pick < 0.72:
            return rng.choice(NUMBERS)
        if pick < 0.82:
            return self._string()
        if pick < 0.87:
            return self._word(rng.choice(("TRUE", "FALSE", "NULL")))
        if pick < 0.94:
            return f"{rng.choice('+-')}\n{self._operand(depth)}"
        if depth > 0:
            return f"(\n{self._condition(depth - 1)}\n)"
        return rng.choice(NAMES)

    def _string(self) -> str:
        return "'" + self.rng.choice(TEXTS).replace("'", "''").replace("\n", " ") + "'"

    def _word(self, word: str) -> str:
        return self.rng.choice((word, word.lower(), word.capitalize()))
