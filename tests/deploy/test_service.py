"""The systemd unit and the container recipe, as far as they can be checked without either."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from ipaddress import ip_network
from pathlib import Path

import pytest
import typer.main
import yaml

from reput.cli import app
from reput.streaming.spark import jvm
from tests.support.cli import ROOT

UNIT = ROOT / "deploy" / "systemd" / "reput@.service"
NETWORK = ROOT / "deploy" / "systemd" / "network.conf"
EXAMPLE = ROOT / "deploy" / "systemd" / "example.env"
FOR_OPERATORS = [
    ROOT / "docs" / f"{name}.md"
    for name in ("install", "run", "watch", "failures", "repair", "tables", "kafka")
]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")


def _unit(path: Path = UNIT) -> dict[str, list[str]]:
    """Settings of all sections; a key that may be repeated has all its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def _example(with_all: bool) -> dict[str, str]:
    """The example's variables; those that are commented out too, if wanted."""
    text = EXAMPLE.read_text("utf-8")
    return dict(
        re.findall(r"^#?(REPUT_\w+)=(.*)$" if with_all else r"^(REPUT_\w+)=(.*)$", text, re.M)
    )


def _command_line(variables: dict[str, str]) -> list[str]:
    """ExecStart's arguments as systemd makes them: ${X} is one, $X is split at blanks."""
    (start,) = _unit()["ExecStart"]
    arguments: list[str] = []
    for word in start.split():
        if word.startswith("$") and not word.startswith("${"):
            arguments += shlex.split(variables[word[1:]])
        else:
            arguments.append(re.sub(r"\$\{(\w+)\}", lambda m: variables[m[1]], word))
    return arguments


def accepted(arguments: list[str]) -> dict[str, object]:
    """Parse arguments of ``reput`` as the command line does, without running anything."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = {**commands["inspect"].commands, **commands}
    command = commands[arguments[0]]
    parsed: dict[str, object] = command.make_context(arguments[0], arguments[1:]).params
    return parsed


@pytest.mark.parametrize("with_all", [False, True], ids=["as it is", "all variables set"])
def test_unit_starts_a_command_line_that_reput_accepts(with_all: bool) -> None:
    """ExecStart with the unit's own variables and the example's."""
    unit = _unit()
    own = dict(pair.split("=", 1) for pair in unit["Environment"])
    arguments = _command_line({**own, **_example(with_all)})
    assert arguments[0].endswith("/bin/reput")
    parsed = accepted(arguments[1:])
    assert parsed["store"] == Path(_example(False)["REPUT_STORE"])
    assert parsed["output"]
    assert parsed["as_json"] is True
    assert parsed["once"] is False
    assert parsed["verify_crc"] is (True if with_all else None)


def test_unit_stops_the_driver_first_and_gives_it_time() -> None:
    """SIGTERM to the driver alone; a restart after a failure, not after a wrong call."""
    unit = _unit()
    assert unit["KillMode"] == ["mixed"]
    assert unit["KillSignal"] == ["SIGTERM"]
    assert unit["Restart"] == ["on-failure"]
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert unit["ProtectSystem"] == ["strict"]
    assert "ReadWritePaths" not in unit  # only what StateDirectory= and CacheDirectory= open


def test_every_recipe_gives_a_stop_the_same_time() -> None:
    """More than Java needs to end, after the last batch: what takes longer is killed."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text("utf-8"))
    manifests = yaml.safe_load_all((ROOT / "deploy/kubernetes/dispatcher.yml").read_text("utf-8"))
    (pod,) = (one["spec"]["template"]["spec"] for one in manifests if one["kind"] == "Deployment")
    texts = (
        *_unit()["TimeoutStopSec"],
        compose["services"]["reput"]["stop_grace_period"],
        f"{pod['terminationGracePeriodSeconds']}s",
    )
    found = [re.fullmatch(r"(\d+)(s|m|min)", text) for text in texts]
    (seconds,) = {int(one[1]) * (1 if one[2] == "s" else 60) for one in found if one is not None}
    assert len(found) == 3
    assert seconds > jvm.END_SECONDS


def test_what_is_compiled_is_kept_where_the_recipe_may_write() -> None:
    """All else is read-only in the unit, and is gone with a container."""
    unit = _unit()
    cache = f"XDG_CACHE_HOME=%C/{unit['CacheDirectory'][0]}"
    assert cache in unit["Environment"]
    variables = dict(_instructions())["ENV"].split()
    (place,) = (one.partition("=")[2] for one in variables if one.startswith("XDG_CACHE_HOME="))
    assert place in json.loads(dict(_instructions())["VOLUME"])
    assert ("RUN", "reput prepare") in _instructions()
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text("utf-8"))
    assert f"cache:{place}" in compose["services"]["reput"]["volumes"]


def test_network_is_closed_but_for_what_the_drop_in_opens() -> None:
    """Reachable hosts are written as addresses, for names would be refused; the operator is told
    where the file goes."""
    unit, opened = _unit(), _unit(NETWORK)
    assert (unit["IPAddressDeny"], unit["IPAddressAllow"]) == (["any"], ["localhost"])
    # Python talks to its workers by the one, and to Java by the other
    assert {"AF_UNIX", "AF_INET"} <= {*unit["RestrictAddressFamilies"][0].split()}
    # an allowed address wins over a denied one, and a drop-in's come to the unit's
    assert set(opened) == {"Wants", "After", "IPAddressAllow"}
    networks = [ip_network(word) for line in opened["IPAddressAllow"] for word in line.split()]
    assert {network.version for network in networks} == {4, 6}
    assert not any(network.is_global for network in networks)
    text = FOR_OPERATORS[0].read_text("utf-8")
    assert "cp deploy/systemd/network.conf /etc/systemd/system/reput@NAME.service.d/" in text


@pytest.mark.parametrize("drop_in", [None, "as it is", "all open"])
def test_systemd_accepts_the_unit(tmp_path: Path, drop_in: str | None) -> None:
    """systemd's own check, with the command of this environment in ExecStart's place."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    unit = tmp_path / "reput@test.service"
    here = str(Path(sys.executable).with_name("reput"))
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/reput/venv/bin/reput", here), "utf-8")
    if drop_in is not None:
        (tmp_path / f"{unit.name}.d").mkdir()
        text = NETWORK.read_text("utf-8")
        if drop_in == "all open":
            text = text.replace("#IPAddressAllow=any", "IPAddressAllow=any")
        (tmp_path / f"{unit.name}.d" / NETWORK.name).write_text(text, "utf-8")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def _instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def _copied() -> list[str]:
    return [part for name, rest in _instructions() if name == "COPY" for part in rest.split()[:-1]]


def test_image_gets_every_file_that_the_build_needs() -> None:
    """Packages, what pyproject.toml names and the constraints; all there, none ignored."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    links = {path.name for path in (ROOT / "src" / "reput").iterdir() if path.is_symlink()}
    named = {"pyproject.toml", "setup.py", "docs/manual.py", "constraints.txt"}
    named.add(project["project"]["readme"])
    wanted = {"src"} | links | named
    assert sorted(_copied()) == sorted(wanted)
    allowed = [x[1:] for x in IGNORED.read_text("utf-8").splitlines() if x.startswith("!")]
    assert sorted(allowed) == sorted(wanted)
    assert [name for name in wanted if not (ROOT / name).exists()] == []


def test_image_installs_as_make_install_does() -> None:
    """The same pip command, without -e, with the extra that --metrics-port needs."""
    found = re.search(r"-m (pip install .*) -e '\.\[dev\]'$", (ROOT / "Makefile").read_text(), re.M)
    assert found is not None
    runs = [rest for name, rest in _instructions() if name == "RUN"]
    assert any(run.endswith(f'-m {found[1]} ".[metrics]"') for run in runs)


def test_container_runs_reput_itself_as_an_ordinary_user() -> None:
    """Exec form, so that SIGTERM arrives; a command line that is accepted; not root."""
    found = dict(_instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["reput"]
    parsed = accepted(json.loads(found["CMD"]))
    volumes = json.loads(found["VOLUME"])
    assert str(parsed["store"]) in volumes
    assert str(parsed["output"]) in volumes
    assert found["USER"] == "reput"


def test_documented_commands_are_accepted() -> None:
    """Every whole ``reput`` command of the pages for operators, under spark-submit too."""
    text = "\n".join(page.read_text("utf-8") for page in FOR_OPERATORS).replace("\\\n", " ")
    call = r"(?:\breput|reput_job\.py) ((?:run|status|inspect) [^`|\n#]*\b(?:STORE|DIR)\b[^`|\n#]*)"
    found = re.findall(call, text)
    for command in found:
        words = [{"PHYSICAL_OFFSET": "0", "QUEUE": "0"}.get(w, w) for w in command.split()]
        parsed = accepted(words[1:] if words[0] == "inspect" else words)
        named = Path("DIR" if words[1] == "checkpoint" else "STORE")
        assert parsed["store"] == (None if "--stores" in words else named), command
    assert len(found) >= 10
