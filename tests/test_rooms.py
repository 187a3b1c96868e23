"""The rooms within a package stand in one order, and no module needs itself by way of others.

Between packages ``tests/test_layout.py`` holds the order. Imports for types alone do not count: a
program does not follow them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {
    "checkpoints": (),
    "cli": (),
    "filters": (),
    "overlay": ("records", "base", "delivery", "drain"),
    "readers": (),
    "serving": ("acl",),
    "sinks": ("index", "tables", "delta", "iceberg", "kafka"),
    "sources": (),
    "store": ("log", "index", "queue", "state", "rows", "bodies", "runs"),
    "streaming": ("spark",),
    "upkeep": ("verify", "watch"),
    "workload": (),
}
"""Package -> its rooms: each may import those before it. Modules beside the rooms may import all of
them, and the rooms may import such modules, as long as there is no circle."""
APART = {"sinks": {"tables"}}
"""Packages whose rooms know nothing of each other, but for these, which all know."""


def files() -> Mapping[str, Path]:
    """Dotted name -> file, of every module."""
    return {
        ".".join(("reput", *path.relative_to(ROOT).with_suffix("").parts)): path
        for package in ROOMS
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }


def imported(body: list[ast.stmt], *, late: bool) -> Iterator[str]:
    """Dotted names that statements import; with ``late`` those within functions, too."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            is_late = isinstance(node, (ast.FunctionDef, ast.ClassDef))
            if late or not is_late:
                for inner in ("body", "orelse", "finalbody"):
                    yield from imported(getattr(node, inner, []), late=late)


def imports_of(path: Path, known: Mapping[str, Path], *, late: bool) -> set[str]:
    """The modules that a module imports."""
    return {
        name for name in imported(ast.parse(path.read_text("utf-8")).body, late=late)
        if name in known and known[name] != path
    }  # fmt: skip


def broken_rooms(name: str, others: set[str]) -> list[str]:
    """The imports of a room's module that the order forbids."""
    _, package, *inner = name.split(".")
    rooms = ROOMS[package]
    if len(inner) < 2:
        return []
    before = {*rooms[: rooms.index(inner[0])]} & APART.get(package, {*rooms})
    allowed = {inner[0], *before}
    return [
        other
        for other in others
        if (parts := other.split("."))[1] == package and len(parts) > 3 and parts[2] not in allowed
    ]


def test_every_room_is_in_the_table() -> None:
    found = {
        package: {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        for package in ROOMS
    }
    assert found == {package: {*rooms} for package, rooms in ROOMS.items()}


def test_a_room_imports_only_rooms_before_it() -> None:
    """Wherever the import stands."""
    known = files()
    broken = {
        name: wrong
        for name, path in known.items()
        if (wrong := broken_rooms(name, imports_of(path, known, late=True)))
    }
    assert broken == {}


def test_no_module_needs_itself() -> None:
    known = files()
    sorter = TopologicalSorter(
        {name: imports_of(path, known, late=False) for name, path in known.items()}
    )
    sorter.prepare()


def test_the_checkers_see_what_is_forbidden() -> None:
    """Canaries of the two tests above."""
    log, queue = "reput.store.log.commitlog", "reput.store.queue.view"
    assert broken_rooms(log, {queue}) == [queue]
    assert broken_rooms(queue, {log}) == []
    assert broken_rooms("reput.sinks.delta.table", {"reput.sinks.index.indexfile"})
    late = "def f() -> None:\n    from reput.store.queue import view\n"
    assert queue in {*imported(ast.parse(late).body, late=True)}
    assert [*imported(ast.parse(late).body, late=False)] == []
    typed = (
        "if TYPE_CHECKING:\n    import reput.store\ntry:\n    import a\nfinally:\n    import b\n"
    )
    assert [*imported(ast.parse(typed).body, late=False)] == ["a", "b"]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
