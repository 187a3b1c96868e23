"""The wheel holds our packages and nothing else, and works from anywhere."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from reput.guard import PACKAGES, foreign_packages

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(place), str(ROOT)], check=True, timeout=300)
    (built,) = place.glob("*.whl")
    return built


def test_wheel_has_our_packages_only(wheel: Path) -> None:
    """Never tests, bench, deploy or docs."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    packages = {name for name in names if not name.endswith(".dist-info")}
    found_by_spark = {"pyspark_rocketmq_commitlog.py", "pyspark_rocketmq_consumequeue.py"}
    assert packages == {"reput", *PACKAGES, *found_by_spark}
    assert "filters/sql92.lark" in zipfile.ZipFile(wheel).namelist()
    assert "streaming/log4j2.properties" in zipfile.ZipFile(wheel).namelist()


def test_wheel_works_from_a_foreign_directory(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, with none of this tree on the path."""
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    paths = [str(unpacked), *_site()]
    code = (
        "import store.log.kernels, sources.commitlog, reput.cli, filters.sql92; "
        "filters.sql92.parse('a = 1'); print(store.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths}; {code}"],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(unpacked) in done.stdout


def _site() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]


def test_names_are_ours_alone() -> None:
    """The guard that the command runs at start finds nothing here."""
    assert foreign_packages() == []


def test_a_stranger_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    """Another package ``streaming`` in front of ours: one line, exit code 1."""
    (tmp_path / "streaming").mkdir()
    (tmp_path / "streaming" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import reput.guard; "
        f"sys.path[:0] = [{str(tmp_path)!r}]; print(reput.guard.foreign_packages())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        cwd=tmp_path,
    )  # fmt: skip
    assert "package streaming is imported from" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other_streaming-1.0.dist-info/RECORD", "x.py,,\nstreaming/a.py,sha256=a,1\n"),
        ("other_streaming-1.0.egg-info/top_level.txt", "other\nstreaming\n"),
        ("reput-9.dist-info/RECORD", "streaming/__init__.py,,\n"),
        ("other-1.0.dist-info/RECORD", "streaming2/a.py,,\nother/streaming/a.py,,\n"),
    ],
)
def test_a_distribution_with_a_package_of_our_name_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """As ``importlib.metadata`` finds it, also where the files of the package are ours."""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    (tmp_path / name).with_name("METADATA").write_text(f"Name: {name.partition('-')[0]}\n")
    (tmp_path / name).with_name("PKG-INFO").write_text(f"Name: {name.partition('-')[0]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    others = set(packages_distributions().get("streaming", [])) - {"reput"}
    wanted = [f"package streaming is also installed by {other}" for other in others]
    assert foreign_packages() == wanted
