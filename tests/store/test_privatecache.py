"""Where compiled kernels are kept: never where others, or kernels of other sources, are."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reput.store import privatecache
from reput.store.log.kernelbase import kernel_sources

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("store", "sinks", "workload")
"""The packages that have kernels."""
CALL = """
import numpy as np
from numba import config
from reput.store.log.kernels import decode_char
code_point, _ = decode_char(np.frombuffer(b"a", np.uint8), 0, 1)
print(config.CACHE_DIR, code_point, sum(decode_char.stats.cache_hits.values()))
"""


def call(program: str, install: Path, cache: Path) -> list[str]:
    """Run it with the kernels of an installation."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=install, check=False, capture_output=True, text=True,
        env={**kept, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(install)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_kernel_is_compiled_again_when_one_that_it_calls_changed(tmp_path: Path) -> None:
    """``decode_char`` reads its bytes by a function of another module, which numba's cache does not
    look at."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "reput" / package)
    (tmp_path / "reput" / "__init__.py").touch()
    directory, value, hits = call(CALL, tmp_path, tmp_path / "cache")
    assert (value, hits) == (str(ord("a")), "0")
    assert call(CALL, tmp_path, tmp_path / "cache") == [directory, value, "1"]
    base = tmp_path / "reput" / "store" / "log" / "kernelbase.py"
    text = base.read_text()
    assert text.count("return np.int64(buf[np.uint64(pos)])") == 1
    base.write_text(text.replace("buf[np.uint64(pos)]", "buf[np.uint64(pos)] + 1"))
    other, value, hits = call(CALL, tmp_path, tmp_path / "cache")
    assert other != directory
    assert (value, hits) == (str(ord("b")), "0")


def test_no_source_of_a_kernel_is_forgotten() -> None:
    """Every module that compiles anything is found by its name, with all that it imports."""
    root = ROOT / "src" / "reput"
    found = {path.resolve() for path in kernel_sources(root)}
    compiled = {
        path.resolve()
        for path in root.glob("*/**/*.py")
        if re.search(r"^(from numba|@kernel|@njit)\b", path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(compiled) > 5
    assert compiled <= found
    imported = {name for path in found for name in _imports(path)}
    assert ROOT / "store" / "log" / "layout.py" in imported, "which no kernel imports itself"
    assert imported <= found


def _imports(path: Path) -> set[Path]:
    """Files of this project from which a module takes names."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {ROOT / f"{name.removeprefix('reput.').replace('.', '/')}.py" for name in names}
    return {file for file in files if file.is_file()}


def test_each_source_and_tool_has_a_directory_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this user may look into one; the ones used longest ago go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "a.py"
    found = []
    for number in range(2 * privatecache.KEPT_VERSIONS):
        source.write_text(f"x = {number}")
        found.append(privatecache.version_directory("kind", [source], ("3.11",)))
        assert found[-1].stat().st_mode & 0o777 == 0o700
        os.utime(found[-1], (number, number))
    assert len(set(found)) == len(found)
    assert [path for path in found if path.exists()] == found[-privatecache.KEPT_VERSIONS :]
    oldest = found[-privatecache.KEPT_VERSIONS]
    source.write_text(f"x = {privatecache.KEPT_VERSIONS}")
    assert privatecache.version_directory("kind", [source], ("3.11",)) == oldest
    newest = privatecache.version_directory("kind", [source], ("3.12",))
    assert newest not in found
    assert oldest.exists()
    assert not found[-privatecache.KEPT_VERSIONS + 1].exists()


@pytest.mark.parametrize("place", ["", "cache", "."])
def test_a_place_in_the_environment_is_absolute_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """XDG's specification says so; code must not be executed from wherever the process stands."""
    stands = tmp_path / "stands"
    stands.mkdir()
    monkeypatch.chdir(stands)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    assert privatecache.private_directory("kind") == tmp_path / ".cache" / "reput" / "kind"
    assert not [*stands.iterdir()]


def test_what_others_can_write_to_is_made_private_or_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of this user's is closed to others; where another user has made it, or none can
    be made, that of the temporary files is taken, and where that is another's too, none."""
    monkeypatch.setattr(privatecache.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (home / "reput" / "kind").mkdir(parents=True)
    (home / "reput" / "kind").chmod(0o777)
    assert privatecache.private_directory("kind") == home / "reput" / "kind"
    assert (home / "reput" / "kind").stat().st_mode & 0o777 == 0o700
    user = os.getuid()
    (home / "reput" / "file").touch()
    fallback = tmp_path / "tmp" / f"reput-{user}" / "reput" / "file"
    assert privatecache.private_directory("file") == fallback
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(OSError, match="no private directory for kind; set XDG_CACHE_HOME"):
        privatecache.private_directory("kind")


@pytest.mark.parametrize("kind", ["open to all", "open to a group", "a link", "another user's"])
def test_a_directory_that_others_have_made_among_the_temporary_files_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whoever can change what is in it could put another directory in the place of ours, whose code
    would then be executed."""
    monkeypatch.setattr(privatecache.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    around = tmp_path / "tmp" / f"reput-{os.getuid()}"
    assert privatecache.private_directory("kind") == around / "reput" / "kind"
    assert around.stat().st_mode & 0o777 == 0o700
    around.chmod(0o755)
    assert privatecache.private_directory("kind") == around / "reput" / "kind"
    if kind == "a link":
        around.rename(tmp_path / "elsewhere")
        around.symlink_to(tmp_path / "elsewhere")
    elif kind == "another user's":
        if os.getuid():
            pytest.skip("only root can give a directory away")
        os.chown(around, 12345, -1)
    else:
        around.chmod(0o757 if kind == "open to all" else 0o775)
    with pytest.raises(OSError, match="no private directory for kind"):
        privatecache.private_directory("kind")
