"""House style that a machine can check: sizes and docstrings (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = (
    "store", "filters", "sources", "sinks", "readers", "serving", "checkpoints", "overlay",
    "streaming", "upkeep", "workload", "cli", "src",
)  # fmt: skip
MODULE_LINES = 500
FUNCTION_LINES = 70

FRAGMENTS = (
    "What", "Which", "Who", "Whose", "That", "Those", "Of", "And", "Also", "Even", "Not", "Until",
    "Whatever",
)  # fmt: skip
"""First words that continue a name instead of beginning a sentence."""

PLACES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("QueueFileError", "IndexFileError", "NotReadyError"), ("path",)),
    **dict.fromkeys(("OutputError", "NoSpaceError", "SyncError"), ("path",)),
    **dict.fromkeys(("MessageBodyError", "QueueGapError"), ("physical_offset",)),
    "CommitLogError": ("path", "physical_offset"),
}
"""Error -> its fields of which one must be given where it is made."""
OTHERS = {"StoreError", "OwnershipError", "NotFoundError"}
"""Errors of which only some are about a file, as their lines show by one of PATHS."""
PATHS = {"path", "self._path", "queue.attempt", "journal", "committed.path"}

BEHIND = re.compile(r"(?<![A-Za-z])[Bb]ehind(?![A-Za-z])")
"""The word by itself, also in a name with underscores."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


EVERYTHING = (*PRODUCT, "bench", "tests", "deploy")


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def lines_of(function: Function) -> int:
    """From the line of ``def`` to the last one, both counted."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring.

    A method that overrides says what it does where it was declared; so only names without an
    underscore in front count, and nothing inside a function.
    """

    def visit(node: Documented, name: str) -> Iterator[str]:
        if ast.get_docstring(node) is None:
            yield name
        for child in node.body:
            if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
                if isinstance(node, Function):
                    continue
                yield from visit(child, f"{name}.{child.name}")

    yield from visit(tree, "module")


def fragments(tree: ast.Module) -> Iterator[str]:
    """First lines of docstrings, of values too, that begin with a word of FRAGMENTS."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and text.partition(" ")[0] in FRAGMENTS:
                yield text.splitlines()[0]


def test_modules_are_short() -> None:
    """500 lines, tests too."""
    assert len(sources(*EVERYTHING)) > 50
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources(*EVERYTHING)
        if (count := len(path.read_text("utf-8").splitlines())) > MODULE_LINES
    }
    assert long == {}


def test_functions_are_short() -> None:
    """70 lines, tests too."""
    long = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": lines_of(function)
        for path in sources(*EVERYTHING)
        for function in functions(ast.parse(path.read_text("utf-8")))
        if lines_of(function) > FUNCTION_LINES
    }
    assert long == {}


@pytest.mark.parametrize("package", PRODUCT)
def test_what_is_public_has_a_docstring(package: str) -> None:
    """Every module, and every class, function and method without an underscore."""
    missing = {
        str(path.relative_to(ROOT)): names
        for path in sources(package)
        if (names := list(undocumented(ast.parse(path.read_text("utf-8")))))
    }
    assert missing == {}


def test_docstrings_are_sentences() -> None:
    """None begins as a fragment: "What ...", "Those ..."."""
    found = {
        str(path.relative_to(ROOT)): texts
        for path in sources(*EVERYTHING, "docs")
        if (texts := list(fragments(ast.parse(path.read_text("utf-8")))))
    }
    assert found == {}


def test_positions_are_before_or_beyond() -> None:
    """A position lies before or beyond another, a slower one lags: neither is "behind".

    RocketMQ's own names, such as dispatchBehindBytes, have no word of their own there.
    """
    files = [
        *ROOT.glob("*.*"),
        *(path for folder in (*EVERYTHING, "docs") for path in (ROOT / folder).rglob("*.*")),
    ]
    texts = [
        path
        for path in files
        if path.suffix in (".py", ".md", ".java", ".toml", ".sh", ".lark")
        and path != Path(__file__)
        and "target" not in path.parts
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if BEHIND.search(line)
    ]
    assert len(texts) > 300
    assert found == []


def placeless_errors(tree: ast.AST) -> Iterator[str]:
    """Errors about a place that are made without the field which says it to a program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            given = {keyword.arg for keyword in node.keywords}
            inserted = (each for each in ast.walk(node) if isinstance(each, ast.FormattedValue))
            is_shown = not PATHS.isdisjoint(ast.unparse(each.value) for each in inserted)
            places = PLACES.get(name, ("path",) if is_shown and name in OTHERS else ())
            if places and given.isdisjoint(places):
                yield f"{node.lineno} {name}"


def test_errors_about_a_place_have_it_as_a_field() -> None:
    """Their lines name it for people; a program needs it apart (``StoreError``)."""
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources(*PRODUCT)
        if (names := list(placeless_errors(ast.parse(path.read_text("utf-8")))))
    }
    assert found == {}


def blind_looks(tree: ast.AST) -> Iterator[int]:
    """Lines that are content if a command has not printed something, however it ended."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
            done = node.comparators[0]
            if (
                isinstance(done, ast.Attribute)
                and done.attr in ("stdout", "stderr")
                and isinstance(done.value, ast.Call)
            ):
                yield node.lineno


def test_a_text_is_not_missed_in_what_a_failed_command_prints() -> None:
    """A command that fails at once prints none of the texts that must not be there: whoever asserts
    that looks at the exit code as well."""
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sources("tests")
        if (lines := list(blind_looks(ast.parse(path.read_text("utf-8")))))
    }
    assert found == {}


def test_the_checks_see_what_they_look_for() -> None:
    """A canary: a long function, missing docstrings, fragments, errors without their place, blind
    looks and the word are found, private functions and RocketMQ's names are let be."""
    body = "\n".join(f"    x = {index}" for index in range(FUNCTION_LINES))
    tree = ast.parse(
        f'"""Module."""\ndef long():\n{body}\ndef _p(): ...\nclass C:\n  def m(self): ...'
    )
    assert lines_of(next(functions(tree))) == FUNCTION_LINES + 1
    assert list(undocumented(tree)) == ["module.long", "module.C", "module.C.m"]
    assert list(undocumented(ast.parse("x = 1"))) == ["module"]
    texts = '"""What it is."""\nx = 1\n"""Those of x."""\ny = "Of y"\n"""Whoever asks."""'
    assert list(fragments(ast.parse(texts))) == ["What it is.", "Those of x."]
    calls = (
        'errors.SyncError(x)', 'QueueFileError(x, path=p)', 'CommitLogError(x, physical_offset=1)',
        'StoreError(f"cannot use {path}")', 'StoreError(f"{path}", path=path)', 'StoreError(x)',
    )  # fmt: skip
    looks = ("'x' not in call('a').stderr", "'x' in call('a').stderr", "'x' not in done.stderr")
    assert list(blind_looks(ast.parse("\n".join(looks)))) == [1]
    raised = ast.parse("\n".join(calls))
    assert list(placeless_errors(raised)) == ["1 SyncError", "4 StoreError"]
    assert all(BEHIND.search(line) for line in ("Behind it", "units_behind_it", "is behind."))
    assert not any(map(BEHIND.search, ("dispatchBehindBytes", "consumerFallbehindThreshold")))
