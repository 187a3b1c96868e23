"""The tests that a random fault meets: those that run its function, the cheapest first.

``coverage.json`` holds the choice, which ``recording`` makes. A function that no recording saw,
such as a compiled kernel, has the tests of those that name it; a line outside of functions has
those of its module.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from tests.canaries import LISTS, ROOT

CHOICES = LISTS / "coverage.json"
Choices = Mapping[str, Mapping[str, Sequence[str]]]
"""File of the product -> function, by its qualified name -> tests, the cheapest first."""
TESTS_OF_A_PLACE = 12
STEPS_OF_NAMES = 3
"""How far the functions that name a function are followed."""


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, Function]]:
    """Each function with its qualified name, inner ones after outer."""
    for node in ast.iter_child_nodes(tree):
        name = outer
        if isinstance(node, Function | ast.ClassDef):
            name = f"{outer}.{node.name}".lstrip(".")
            if isinstance(node, Function):
                yield name, node
        yield from functions_of(node, name)


def product_files() -> list[str]:
    """Every module of ``reput``, whose packages are links to folders of the tree."""
    package = ROOT / "src" / "reput"
    folders = sorted(path.resolve() for path in package.iterdir() if path.is_symlink())
    paths = [*package.glob("*.py"), *(path for one in folders for path in one.rglob("*.py"))]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def read_choices() -> dict[str, dict[str, list[str]]]:
    """The choice of ``coverage.json``, where tests have numbers."""
    found = json.loads(CHOICES.read_text("utf-8"))
    return {
        file: {name: [found["tests"][number] for number in numbers] for name, numbers in of.items()}
        for file, of in found["functions"].items()
    }


@cache
def tests_of(path: str) -> frozenset[str]:
    """Names of a file's test functions."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in names if name.startswith("test_"))


def exists(test: str) -> bool:
    """Whether a file has the test that this node id names."""
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name.partition("[")[0] in tests_of(path)


@cache
def files_importing(package: Path) -> list[str]:
    """The files of tests that import from a package of ``reput``."""
    line = re.compile(rf"^from {'.'.join(('reput', *package.parts))}[. ]", re.M)
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if line.search(path.read_text("utf-8"))]


@dataclass(frozen=True)
class Chooser:
    """Finds the tests of a place in the product."""

    choices: Choices
    functions: Mapping[str, Sequence[tuple[str, range]]]
    """File -> its functions with the lines of their bodies, inner ones after outer."""
    naming: Mapping[str, set[tuple[str, str]]] = field(repr=False)
    """A name -> the functions, with their files, that name it."""
    importing: Mapping[str, list[str]] = field(repr=False)
    """The last part of a module's name -> the files that import from it."""

    @classmethod
    def of(cls, choices: Choices) -> Self:
        """For the tree as it is, which is read once: a test asks for every function's tests."""
        functions: dict[str, list[tuple[str, range]]] = {}
        naming: dict[str, set[tuple[str, str]]] = {}
        importing: dict[str, list[str]] = {}
        for file in product_files():
            tree = ast.parse((ROOT / file).read_text("utf-8"))
            functions[file] = []
            for function, node in functions_of(tree):
                body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
                functions[file].append((function, body))
                for one in ast.walk(node):
                    named = one.id if isinstance(one, ast.Name) else None
                    named = one.attr if isinstance(one, ast.Attribute) else named
                    if named:
                        naming.setdefault(named, set()).add((file, function))
            for one in ast.walk(tree):
                if isinstance(one, ast.ImportFrom) and one.module:
                    importing.setdefault(one.module.rpartition(".")[2], []).append(file)
        return cls(choices, functions, naming, importing)

    def tests(self, file: str, line: int) -> list[str]:
        """The cheap tests that a fault in this line meets; where none is known, the files of tests
        that import from its package. Tests that have gone since the recording are left out."""
        known = list(filter(exists, self.every(file, line)))[:TESTS_OF_A_PLACE]
        return known or files_importing(Path(file).parent)

    def every(self, file: str, line: int) -> list[str]:
        """All tests of the choice, the closest first."""
        inside = [name for name, body in self.functions[file] if line in body]
        if not inside:
            return self._of_module(file)
        return self._of_function(file, inside[-1]) or self._of_module(file)

    def _of_function(self, file: str, name: str) -> list[str]:
        places, seen = {(file, name)}, {(file, name)}
        for _ in range(STEPS_OF_NAMES):
            found = [
                test for place, function in sorted(places)
                for test in self.choices.get(place, {}).get(function, ())
            ]  # fmt: skip
            if found:
                return list(dict.fromkeys(found))
            names = {function.rpartition(".")[2] for _, function in places}
            places = {one for name in names for one in self.naming.get(name, ())} - seen
            seen |= places
        return []

    def _of_module(self, file: str) -> list[str]:
        """The cheapest tests of its functions in turn."""
        lists = [list(tests) for tests in self.choices.get(file, {}).values()]
        longest = max(map(len, lists), default=0)
        in_turn = [tests[turn] for turn in range(longest) for tests in lists if turn < len(tests)]
        if not in_turn:
            users = dict.fromkeys(self.importing.get(Path(file).stem, ()))
            of_users = (self.choices.get(user, {}).values() for user in users)
            in_turn = [test for lists in of_users for tests in lists for test in tests[:1]]
        return list(dict.fromkeys(in_turn))
