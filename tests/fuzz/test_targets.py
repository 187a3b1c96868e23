"""The fuzz targets take their own seeds, and the fuzzer finds what is planted."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reput.serving import frame
from tests.fuzz import __main__ as command
from tests.fuzz import targets
from tests.serving.test_frame import mutated
from tests.support.processes import module_command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        [*module_command("tests.fuzz"), *arguments],
        cwd=command.ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_target_takes_its_seeds_and_other_bytes(name: str, seed: int) -> None:
    """As they are and mutated: a target that fails here tells nothing of the code."""
    target, rng = targets.load(name), random.Random(seed)
    seeds = list(target.seeds())
    assert seeds
    for data in seeds:
        target.check(data)
        target.check(mutated(rng, data))


def test_the_frame_target_sees_a_lost_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that forgets remarks is found by the seeds."""
    target = targets.load("frame")
    seeds, whole = list(target.seeds()), frame._encode_binary
    monkeypatch.setattr(frame, "_encode_binary", lambda found: whole(replace(found, remark=None)))
    with pytest.raises(AssertionError):
        for data in seeds:
            target.check(data)


def test_without_atheris_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error in one line; one input can be checked without it."""
    monkeypatch.setitem(sys.modules, "atheris", None)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        command.parse(["frame"])
    assert ended.value.code == 2
    assert "atheris is missing; install it with" in capsys.readouterr().err.splitlines()[-1]
    assert command.parse(["frame", "--input", "x"]).input == Path("x")


def test_the_fuzzer_finds_the_canary(seed: int) -> None:
    """In seconds, with an exit code and an input that fails by itself."""
    pytest.importorskip("atheris")
    done = run("canary", "--seconds", "120", "--seed", str(seed))
    assert done.returncode == 1, done.stdout
    assert "the planted fault was found" in done.stdout
    (kept,) = (line for line in done.stderr.splitlines() if "Test unit written to" in line)
    path = Path(kept.rpartition(" ")[2])
    try:
        with pytest.raises(AssertionError, match="planted"):
            targets.load("canary").check(path.read_bytes())
    finally:
        path.unlink()


def test_a_run_tells_what_it_did() -> None:
    """A second of it, in the last line."""
    pytest.importorskip("atheris")
    done = run("frame", "--seconds", "1", "--seed", "3")
    assert done.returncode == 0, done.stderr
    last = dict(word.split("=") for word in done.stdout.splitlines()[-1].split())
    assert (last["target"], last["seed"]) == ("frame", "3")
    assert int(last["executions"]) > 100
