"""The import table of ARCHITECTURE.md, enforced: siblings meet in ``store`` and nowhere else.

The rules are read from source with ``ast``, so that an import inside a function or under
TYPE_CHECKING counts too; that ``store`` and ``checkpoints`` need no JVM is tried out as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput.store import files

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "reput"

ROW = re.compile(r"\| `(\w+)/` \|[^|]*\| (.*) \|")
IMPORTS = {
    folder: frozenset(names.split(", "))
    for folder, names in ROW.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
}
"""Folder -> packages below ``reput``, and third-party ones, that it imports besides itself;
``reput`` stands for what the package itself holds. ``src`` holds the entry points, and links to the
other folders."""

CHANGING_CALLS = {
    "os": {
        "write", "pwrite", "writev", "pwritev", "ftruncate", "truncate", "rename", "replace",
        "renames", "unlink", "remove", "rmdir", "removedirs", "mkdir", "makedirs", "link",
        "symlink", "fsync", "fdatasync", "sync", "posix_fallocate", "copy_file_range", "sendfile",
        "chmod", "utime",
    },
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "rmtree"},
}  # fmt: skip
CHANGING_METHODS = {
    "write_text", "write_bytes", "rename", "unlink", "rmdir", "mkdir", "touch", "symlink_to",
    "hardlink_to",
}  # fmt: skip
WRITERS = {
    "store", "filters", "sinks", "readers", "serving", "checkpoints", "overlay", "streaming",
    "workload", "upkeep",
}  # fmt: skip
"""Packages in which only ``store/fsops.py`` changes files (ARCHITECTURE.md)."""
EXEMPT = {
    "store/fsops.py",
    "store/privatecache.py",  # the cache of compiled code, which is no output
    "streaming/spark/workertemplate.py",  # the socket of a process, which ends with it
}

NAMING = {
    "store/files.py",
    "store/privatecache.py",  # a directory of the user's, whatever it is called
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(source: str, package: str) -> Iterator[str]:
    """Names of everything that a module imports: that of a package below ``reput``, or the
    top-level name of any other; its own package for relative ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (owner(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield package
            elif node.module == "reput":
                yield from (owner(f"reput.{alias.name}") for alias in node.names)
            else:
                yield owner(node.module or "")


def owner(name: str) -> str:
    """The package below ``reput`` that a dotted name belongs to; otherwise its first part."""
    first, _, rest = name.partition(".")
    below = rest.partition(".")[0]
    if first == "reput":
        return below if below in IMPORTS else first
    # a folder is no package of its own
    return f"/{first}" if first in IMPORTS else first


def forbidden_imports(source: str, package: str) -> list[str]:
    """The imports of ``package`` that the table does not allow."""
    allowed = IMPORTS[package] | sys.stdlib_module_names | {package}
    return sorted({name for name in imported(source, package) if name not in allowed})


def changing_calls(source: str) -> list[str]:
    """Calls that change a file system: ``os`` and ``shutil`` functions, ``Path`` methods, open."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            found.append(f"{node.lineno}: open")
        elif isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if owner == "fsops":
                continue
            changing = called.attr in CHANGING_CALLS.get(owner, ())
            if owner not in CHANGING_CALLS:
                opens = called.attr == "open" and _is_writing_mode(node)
                changing = opens or called.attr in CHANGING_METHODS
            if changing:
                found.append(f"{node.lineno}: {ast.unparse(called)}")
    return found


def _is_writing_mode(call: ast.Call) -> bool:
    modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return any(isinstance(text, str) and set(text) & set("wax+") for text in texts)


@pytest.mark.parametrize("package", sorted(IMPORTS))
def test_a_package_imports_what_the_table_says(package: str) -> None:
    """Every module of it, wherever the import stands; and the row names nothing else."""
    broken = {
        str(path.relative_to(ROOT)): names
        for path in modules(package)
        if (names := forbidden_imports(path.read_text("utf-8"), package))
    }
    assert broken == {}
    sources = (path.read_text("utf-8") for path in modules(package))
    assert IMPORTS[package] <= {name for source in sources for name in imported(source, package)}


def test_the_checker_sees_what_is_forbidden() -> None:
    """A canary: each of these lines must be found, or the test above proves nothing."""
    for package, line, name in (
        ("sinks", "import reput.sources.queues", "sources"),
        ("sinks", "from reput import sources", "sources"),
        ("sinks", "import store.errors", "/store"),
        ("sources", "from reput.sinks.index.consumequeue import x", "sinks"),
        ("checkpoints", "def f():\n    import pyspark.sql", "pyspark"),
        ("store", "if TYPE_CHECKING:\n    from pandas import DataFrame", "pandas"),
        ("store", "from reput.checkpoints import watermark", "checkpoints"),
        ("streaming", "import reput", "reput"),
        ("sinks", "import os, pandas as pd", "pandas"),
    ):
        assert forbidden_imports(line, package) == [name]
    assert forbidden_imports("from . import x\nimport os.path\nimport numpy", "store") == []


def test_every_package_is_in_the_table() -> None:
    """A new top-level package needs a row."""
    outside = {"tests", "bench", "deploy", "docs"}
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - outside
    assert found == set(IMPORTS) - {"src"}
    links = {path.name: path.resolve() for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in found}


def test_only_fsops_changes_files() -> None:
    """Every write, rename, truncation and sync goes through the module with the failpoints."""
    broken = {
        name: calls
        for package in sorted(WRITERS)
        for path in modules(package)
        if (name := str(path.relative_to(ROOT))) not in EXEMPT
        and (calls := changing_calls(path.read_text("utf-8")))
    }
    assert broken == {}


def test_the_write_checker_sees_writes() -> None:
    """A canary for the test above."""
    for line in (
        "os.ftruncate(fd, 0)",
        "os.pwrite(fd, b'', 0)",
        "Path('x').write_bytes(b'')",
        "path.rename(other)",
        "path.open('r+b')",
        "path.open(mode='w')",
        "open('x')",
        "shutil.move(a, b)",
    ):
        assert len(changing_calls(line)) == 1, line
    for line in ("fsops.rename(a, b)", "os.open(p, 0)", "p.open('rb', buffering=0)", "os.close(1)"):
        assert changing_calls(line) == [], line


def names_again(source: str) -> list[str]:
    """Literals that name a file of a store or an output: what follows a slash between paths, and
    whatever is no plain word."""
    names = {
        name
        for value in vars(files).values()
        for name in (value if isinstance(value, tuple) else (value,))
        if isinstance(name, str)
    }
    tree = ast.parse(source)
    below = {
        id(node.right)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and node.value in names
        and (id(node) in below or not node.value.isalpha())
    ]


def test_each_file_is_named_once() -> None:
    """In ``store/files.py``: a program that misspells a name finds no file, and no error."""
    broken = {
        name: found
        for package in IMPORTS
        for path in modules(package)
        if (name := str(path.relative_to(ROOT))) not in NAMING
        and (found := names_again(path.read_text("utf-8")))
    }
    assert broken == {}


def test_the_name_checker_sees_names() -> None:
    """A canary for the test above."""
    assert names_again("path = root / 'watermark'") == ["watermark"]
    assert names_again("open('owner.lock')") == ["owner.lock"]
    assert names_again("fields['watermark']; a / 'b'; 'consumequeue'") == []


BLOCKED_IMPORT = """
import importlib, sys

BLOCKED = {blocked!r}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
for name in {names!r}:
    importlib.import_module(name)
print("imported", len({names!r}))
"""


def import_without(names: list[str], blocked: set[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED_IMPORT.format(blocked=blocked, names=names)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )


def module_names(package: str) -> list[str]:
    return [
        ".".join(("reput", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in modules(package)
    ]


def test_store_sinks_readers_checkpoints_and_the_commit_need_no_spark() -> None:
    """Every module of them is imported where pyspark, its parts and the extras are missing."""
    names = [
        name
        for package in ("store", "filters", "sinks", "readers", "serving", "checkpoints", "overlay")
        for name in module_names(package)
    ]
    names.append("reput.streaming.commit")
    some = {"reput.store", "reput.checkpoints.reconcile", "reput.sinks.index.consumequeue"}
    assert some <= set(names)
    done = import_without(
        names, {"pyspark", "py4j", "pandas", "typer", "rich", "deltalake", "kafka", "duckdb"}
    )
    assert done.stdout == f"imported {len(names)}\n", done.stderr
    canary = import_without(["reput.sources.commitlog"], {"pyspark"})
    assert "blocked: pyspark" in canary.stderr


HEAVY = {"numpy", "numba", "pyarrow", "pyspark", "pandas", "duckdb", "deltalake", "kafka", "lark"}


def loaded_by(*words: str) -> set[str]:
    """The heavy packages that the command with these words has imported at its end."""
    code = (
        "import atexit, sys; from reput.__main__ import main; sys.argv[1:] = " + repr(words) + "; "
        "atexit.register(lambda: print(*{name.partition('.')[0] for name in sys.modules}, "
        "file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stderr.split())


def printing_calls(source: str) -> list[str]:
    """Calls that print on stdout, or make JSON of something."""
    names = {"print", "typer.echo", "typer.secho", "json.dump", "json.dumps"}
    texts = [
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
    ]
    return [
        f"{line}: {text}"
        for line, text in texts
        if text in names or text.startswith(("sys.stdout.write", "sys.stdout.buffer"))
        or text.split(".")[-1] in ("json_text", "Console")
    ]  # fmt: skip


PRINTING = {
    "printer.py": "results of commands",
    "render.py": "the log and errors, on stderr",
    "bar.py": "the bar, on stderr",
    "terminal.py": "a screen",
}
"""Module of ``cli`` -> what it alone prints."""


def test_commands_return_results_and_one_printer_prints_them() -> None:
    """``--version`` is no command, and is printed before the printer is loaded."""
    found = {path.name: printing_calls(path.read_text()) for path in modules("cli")}
    assert [name for name, calls in found.items() if calls] == sorted([*PRINTING, "__init__.py"])
    assert [call.split(": ")[1] for call in found["__init__.py"]] == ["typer.echo"]


def test_the_list_of_commands_imports_no_command() -> None:
    """The start of every command is that of ``--help``: a heavy package there slows them all."""
    assert loaded_by("--help") == set()
    assert loaded_by("--version") == set()
    assert "numpy" in loaded_by("diff", "--help"), "what a command imports is not seen"


def test_status_and_readers_import_no_spark(golden: Callable[[str], Path]) -> None:
    """They run in a few tenths of a second, and Spark or numba alone take longer to import."""
    store = str(golden("mixed"))
    assert loaded_by("status", store) == {"numpy"}
    slow = {"numba", "pyarrow", "pyspark", "pandas", "duckdb", "deltalake", "kafka"}
    assert loaded_by("get", store, "Topic_0", "0", "0").isdisjoint(slow)
    compressed = loaded_by("get", store, "Topic_0", "0", "3")
    assert compressed & slow == {"pyarrow"}, "which inflates"
    assert loaded_by("query", store, "Topic_0", "--key", "k353").isdisjoint(slow - {"pyarrow"})
