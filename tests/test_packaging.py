"""The wheel holds our packages and nothing else, and works from anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from docs.manual import pages
from tests.support.standalone import QUICK_JVM

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
BACKEND, *IMPORTED = PROJECT["build-system"]["requires"]
FOLDERS = sorted(path.name for path in (ROOT / "src" / "reput").iterdir() if path.is_symlink())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree, which keeps nothing of it outside of ``build``."""
    before = set(ROOT.iterdir())
    wheel = _wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))
    assert set(ROOT.iterdir()) - before <= {ROOT / "build"}
    return wheel


def _wheel_of(source: Path, place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(place), str(source)], check=True, timeout=300)
    (built,) = place.glob("*.whl")
    return built


@pytest.mark.extended
def test_wheel_has_our_packages_only(wheel: Path) -> None:
    """Never tests, bench or deploy; of docs, the manual pages alone, beside the packages."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    packages = {name for name in names if not name.endswith((".dist-info", ".data"))}
    found_by_spark = {"pyspark_rocketmq_commitlog.py", "pyspark_rocketmq_consumequeue.py"}
    assert packages == {"reput", *found_by_spark}
    assert "reput/filters/sql92.lark" in zipfile.ZipFile(wheel).namelist()
    assert "reput/streaming/spark/log4j2.properties" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.extended
def test_wheel_works_from_a_foreign_directory(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, with none of this tree on the path."""
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    paths = [str(unpacked), *_site()]
    code = (
        "import reput.store.log.kernels, reput.sources.commitlog, reput.cli, reput.filters.sql92; "
        "reput.filters.sql92.parse('a = 1'); print(reput.store.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths}; {code}"],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(unpacked) in done.stdout


def _site() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]


@pytest.mark.extended
def test_wheel_has_what_the_code_reads_and_the_manual(wheel: Path) -> None:
    """Every file of our packages that is under version control, the licence, and every page."""
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "--", *FOLDERS],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=60,
    ).stdout.split()  # fmt: skip
    assert len(listed) > 100
    assert {f"reput/{name}" for name in listed} - names == set()
    roff = {Path(name).name for name in names if "/data/share/man/man1/" in name}
    assert roff == set(pages("0.1.0"))
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


@pytest.mark.extended
def test_a_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """It holds docs/manual.py, too, which makes the manual pages."""
    tree = tmp_path / "tree"
    # what an earlier build has listed would be taken as well
    beside = shutil.ignore_patterns(".*", "*.egg-info", "build", "tests", "bench", "__pycache__")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=beside)
    backend = ["-m", "pip", "install", "--quiet", "--target", tmp_path / "backend", BACKEND]
    subprocess.run([sys.executable, *backend], check=True, timeout=120)
    made = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run(
        [sys.executable, "-c", made], cwd=tree, check=True, timeout=120, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "backend")},
    )  # fmt: skip
    (source,) = tmp_path.glob("*.tar.gz")
    again = _wheel_of(source, tmp_path)
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a new environment into which pip has installed the wheel, without the
    network: the packages that it needs are links to those of this environment."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*command, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    (site,) = place.glob("lib/python*/site-packages")
    # links to all but our own editable installation, which must not be found beside the wheel
    for path in _site():
        for found in Path(path).iterdir():
            if found.suffix != ".pth" and "reput" not in found.name:
                with suppress(FileExistsError):
                    (site / found.name).symlink_to(found)
    return place / "bin"


@pytest.mark.extended
def test_man_shows_a_page_of_the_installed_commands(installed: Path) -> None:
    """As docs/install.md says; the options are those of the command."""
    man = shutil.which("man")
    if man is None:
        pytest.skip("man is not on this machine")
    place = installed.parent / "share" / "man"
    for name, word in (("reput", "groups reset"), ("reput-run", "--metrics-port")):
        shown = subprocess.run(
            [man, "-M", str(place), name],
            env={**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert f"{name.upper()}(1)" in shown.stdout.upper()
        assert word in shown.stdout


def test_the_build_takes_the_versions_that_the_commands_take() -> None:
    """It imports the commands for their pages."""
    assert BACKEND.startswith("setuptools>=")
    assert set(IMPORTED) <= set(PROJECT["project"]["dependencies"])


def _run(installed: Path, home: Path, *arguments: str) -> str:
    """Run the installed command as a new user would, elsewhere; return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REPUT"))}
    environment |= {"COLUMNS": "100", "PATH": f"{installed}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["reput", *arguments], executable=installed / "reput", env=environment, cwd=home,
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


HOSTILE_JOB = """
import sys
from pyspark.sql import SparkSession
import filters, sources, store, streaming
from reput.readers.messagestore import MessageStore

assert [one.OWNER for one in (filters, sources, store, streaming)] == ["user"] * 4
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "1").getOrCreate()
)
batch = spark.read.format("rocketmq-commitlog").load("log")
queued = spark.read.format("rocketmq-consumequeue").option("output", "out").load("log")
counts = []
query = (
    spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest").load("log")
    .writeStream.trigger(availableNow=True).option("checkpointLocation", "checkpoint")
    .foreachBatch(lambda frame, _: counts.append(frame.count())).start()
)
query.awaitTermination()
print("rows", batch.count(), queued.count(), sum(counts))
"""


def _said(python: Path, home: Path, *words: str) -> str:
    """Return the output of an interpreter in a user's folder, without this process's settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REPUT"))}
    environment |= {"PYSPARK_PYTHON": str(python), "JDK_JAVA_OPTIONS": QUICK_JVM}
    done = subprocess.run(
        [python, *words], env=environment, cwd=home, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def _fill(home: Path, python: Path) -> None:
    """Let a user have a ``store.py``, packages ``filters``, ``sources``, ``streaming`` and a script
    in a folder, and make and dispatch a log there."""
    (home / "store.py").write_text("OWNER = 'user'\n")
    for name in ("filters", "sources", "streaming"):
        (home / name).mkdir()
        (home / name / "__init__.py").write_text("OWNER = 'user'\n")
    (home / "job.py").write_text(HOSTILE_JOB)
    produce = ("produce", "log", "-n", "300", "--topics", "1", "--queues", "1")
    _said(python, home, "-m", "reput", *produce)
    said = _said(python, home, "-m", "reput", "run", "log", "--output", "out", "--once")
    assert said.startswith("300 messages")


@pytest.fixture(scope="module")
def home(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a user of the wheel has filled so."""
    place = tmp_path_factory.mktemp("home")
    _fill(place, installed / "python")
    return place


@pytest.mark.extended
def test_a_new_user_runs_the_commands_of_the_wheel(installed: Path, home: Path) -> None:
    """Each once, in the order of a first afternoon, on a store that the wheel itself has made."""
    assert _run(installed, home, "--version").startswith("reput 0.1.0")
    (topic,) = (path.name for path in (home / "out" / "consumequeue").iterdir())
    for call in (
        "status log --output out",
        f"get log {topic} 0 7 --output out",
        f"tail log {topic} --output out",
        "verify log --output out",
        "expire log --output out",
        "checkpoints list log --output out",
        "inspect record log 0",
        "config show run log",
    ):
        assert _run(installed, home, *call.split()), call


@pytest.mark.extended
def test_names_of_a_user_neither_hide_ours_nor_are_hidden(installed: Path, home: Path) -> None:
    """The commands, a script that imports those too, a Spark batch and a stream by the sources'
    names."""
    assert _said(installed / "python", home, "job.py").splitlines()[-1] == "rows 300 300 300"


@pytest.mark.slow
def test_names_of_a_user_beside_a_checkout(tmp_path: Path) -> None:
    """The same with this tree, which is no wheel."""
    python = Path(sys.executable)
    _fill(tmp_path, python)
    assert _said(python, tmp_path, "job.py").splitlines()[-1] == "rows 300 300 300"


@pytest.fixture
def completed(tmp_path: Path) -> Callable[[str], list[str]]:
    """The words that a real bash offers for the last word of a line, with the script that ``reput
    --show-completion bash`` prints."""
    script, commands = tmp_path / "completion.bash", Path(sys.executable).parent
    # what --show-completion prints when the shell is known, which here is no bash
    environment = {**os.environ, "_REPUT_COMPLETE": "source_bash"}
    done = subprocess.run(
        [commands / "reput"], env=environment, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    script.write_text(done.stdout, "utf-8")

    def offered(line: str) -> list[str]:
        count = len(line.split(" ")) - 1
        shown = subprocess.run(
            ["bash", "--norc", "-c",
             f"source {script}; COMP_WORDS=({line}); COMP_CWORD={count}; _reput_completion reput;"
             " printf '%s\\n' \"${COMPREPLY[@]}\""],
            env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert shown.stderr == ""
        return shown.stdout.split("\n")[:-1]

    return offered


def test_bash_completes_a_command_and_an_option(completed: Callable[[str], list[str]]) -> None:
    """A group's name too."""
    assert completed("reput che") == ["checkpoints"]
    assert completed("reput run --metr") == ["--metrics-port", "--metrics-queues"]


def test_bash_completes_topics_and_groups_of_the_store(
    completed: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Where the line names it, with its output; none on which a shell would act; no error."""
    store, output = tmp_path / "store", tmp_path / "output"
    for name in (
        "Orders",
        "Ordinary",
        "订单.1",
        "$(touch evil)",
        "O;reboot",
        "a b",
        "-O",
        "%RETRY%G",
    ):
        (output / "consumequeue" / name / "0").mkdir(parents=True)
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_text(
        '{"topicConfigTable": {"Orphan": {"attributes": {}}}}'
    )
    (store / "config" / "consumerOffset.json").write_text(
        '{"offsetTable": {"Orders@billing": {"0": 5}, "Orders@bi;ll": {"0": 5}}}'
    )
    assert completed(f"reput tail {store} Or") == ["Orphan"]
    assert completed(f"reput tail --output {output} {store} Or") == ["Orders", "Ordinary", "Orphan"]
    everything = ["%RETRY%G", "Orders", "Ordinary", "Orphan", "订单.1"]
    assert completed(f"reput status {store} --output {output} --topic ''") == everything
    assert completed(f"reput groups reset {store} b") == ["billing"]
    assert completed(f"reput lag {store} --group b") == ["billing"]
    assert completed(f"reput tail {tmp_path / 'none'} Or") == [""]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pip_brings_all_that_the_extras_need(wheel: Path, tmp_path: Path) -> None:
    """From an empty environment, with the exact versions of this repository, and no package of it
    but what pip installs; each extra is used once."""
    venv.create(tmp_path / "venv", with_pip=True)
    binary = tmp_path / "venv" / "bin"
    pip = [str(binary / "python"), "-m", "pip", "--disable-pip-version-check"]
    wanted = f"{wheel}[acl,delta,iceberg,kafka,metrics,pipelines,sql]"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", "--quiet", *constraints, wanted], check=True, timeout=1800)
    done = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    shape = ("--topics", "1", "--queues", "1")
    _run(binary, tmp_path, "produce", "store", "-n", "500", *shape)
    also = ("--delta", "table", "--metrics-port", "0")
    said = _run(binary, tmp_path, "run", "store", "--output", "out", "--once", *also)
    assert said.startswith("500 messages dispatched")
    assert any((tmp_path / "table" / "_delta_log").iterdir())
    shown = _run(binary, tmp_path, "sql", "store", "select count(*) as n from messages")
    assert "500" in shown
    modules = "import kafka, crc32c, pyspark.pipelines.cli, yaml"
    subprocess.run([binary / "python", "-Ic", modules], check=True, timeout=300)
    pages = {path.name for path in (tmp_path / "venv" / "share" / "man" / "man1").iterdir()}
    assert {"reput.1", "reput-run.1"} <= pages
