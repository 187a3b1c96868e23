"""A path that may not be read ends a command with one line that names it, and exit code 1.

Every command that needs no JVM, over every kind of path of a store and an output. A command that
does not look at a path is not disturbed by it.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.permissions import unreadable

TOPIC = "Topic_0"
OFFSETS = '{"offsetTable":{"Topic_0@g":{0:1}}}'
STORE_PATHS = (
    ".", "config", "config/topics.json", "config/consumerOffset.json", "broker.conf", "commitlog",
    "commitlog/00000000000000000000",
)  # fmt: skip
OUTPUT_PATHS = (
    ".", "consumequeue", f"consumequeue/{TOPIC}", f"consumequeue/{TOPIC}/0",
    f"consumequeue/{TOPIC}/0/00000000000000000000", "index", "index/*", "checkpoint", "reput",
    "reput/watermark", "reput/built.json", "reput/spark", "config", "config/consumerOffset.json",
)  # fmt: skip
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (), "get": (TOPIC, "0", "0"), "tail": (TOPIC,),
    "query": (TOPIC, "--key", "k"), "search-time": (TOPIC, "0", "0"), "lag": (), "verify": (),
    "groups reset": ("g", "-t", TOPIC, "--earliest"),
    "expire": (), "checkpoints list": (),
    "inspect queue": (TOPIC, "0"), "serve": ("--listen", "127.0.0.1:0", "--tls-cert", "none"),
    "sql": ("select count(body) from messages",), "export": ("{0}/rows",),
    "inspect record": ("0",), "inspect checkpoint": (), "diff": ("{0}/output",),
}  # fmt: skip
OF_A_STORE = ("sql", "export", "inspect record", "inspect checkpoint", "diff")
"""Commands that have no --output."""
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+|[\d.,]+ (s|min|h|days?)\b")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> DerivedOutput:
    derived = DerivedOutput.unpack("plain", tmp_path_factory.mktemp("built"))
    derived.start()
    for root in (derived.store, derived.root):
        (root / "config").mkdir(exist_ok=True)
        (root / "config" / "consumerOffset.json").write_text(OFFSETS)
    (derived.store / "broker.conf").touch()
    return derived


def answer(call: Call, built: DerivedOutput, name: str) -> tuple[int, str, str]:
    """Exit code, what a command answers without times, and what it says."""
    command = name.split()
    place = () if name in OF_A_STORE else ("--output", built.root)
    words = [word.format(built.root.parent) for word in COMMANDS[name]]
    done = call(*command, built.store, *words, *place)
    shutil.rmtree(built.root.parent / "rows", ignore_errors=True)
    return done.returncode, TIMES.sub("", done.stdout), done.stderr


def paths(built: DerivedOutput) -> Iterator[Path]:
    for root, names in ((built.store, STORE_PATHS), (built.root, OUTPUT_PATHS)):
        for name in names:
            yield from [root] if name == "." else root.glob(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_path_that_may_not_be_read_is_named(call: Call, built: DerivedOutput, name: str) -> None:
    """One line, no number of an error, no frame; never a wrong answer as if it were not there."""
    sound = answer(call, built, name)
    found = Counter[str]()
    for path in paths(built):
        with unreadable(path):
            code, answered, said = answer(call, built, name)
        if (code, answered, said) == sound:
            found["not looked at"] += 1
            continue
        assert code == 1, (path, code, answered, said)
        [line] = [line for line in said.splitlines() if line not in sound[2]]
        assert line.startswith("reput: error: "), line
        assert "Permission denied" in line, line
        assert f"{path}" in line, line
        assert "Errno" not in line, line
        found["named"] += 1
    assert found["named"] >= 3, found


def test_a_run_names_it_before_java_starts(
    call: Call, built: DerivedOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a rebuild; Java would take seconds."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    for name in STORE_PATHS[:6]:
        path = built.store / name
        for command in (("run", "--once"), ("rebuild", "--dry-run")):
            if name == "config/consumerOffset.json":
                continue
            with unreadable(path):
                done = call(*command, built.store, "--output", tmp_path / "out")
            assert done.returncode == 1
            [line] = [line for line in done.stderr.splitlines() if "error: " in line]
            assert str(path) in line, line
            assert "Permission denied" in line, line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "record", "{0}", "1" * 20), "'OFFSET': it must be a whole number up to"),
        (("export", "{0}", "out", "--from-offset", "1" * 19 + "9"), "a whole number up to 92233"),
        (("tail", "{0}", TOPIC, "--count", "9" * 30), "it must be a whole number up"),
        (("get", "{0}", TOPIC, "0", "1", "--as-of", "offset:" + "1" * 19), "up to 18 digits"),
    ],
)
def test_a_number_that_no_offset_can_be(
    call: Call, built: DerivedOutput, arguments: tuple[str, ...], said: str
) -> None:
    """Beyond a Java long: a wrong call, and no overflow in what takes it."""
    done = call(*(word.format(built.store) for word in arguments))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("options", "code"), [(("status",), 1), (("status", "--check"), 3), (("verify",), 1)]
)
def test_one_of_several_stores_hides_no_other(
    call: Call, built: DerivedOutput, tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    """Its error stands in its place."""
    stores, outputs = tmp_path / "stores", tmp_path / "outputs"
    for name in ("a", "b"):
        shutil.copytree(built.store, stores / name)
        shutil.copytree(built.root, outputs / name)
    name = f"consumequeue/{TOPIC}/0/00000000000000000000"
    with unreadable(outputs / "a" / name):
        done = call(options[0], "--stores", f"{stores}/*", "--outputs", outputs, *options[1:])
    assert done.returncode == code, done.stderr
    assert f"{outputs}/a/{name}" in done.stdout + done.stderr
    assert "Errno" not in done.stdout + done.stderr
    assert "b" in done.stdout
    assert "Traceback" not in done.stderr
