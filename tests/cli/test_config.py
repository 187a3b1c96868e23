"""Options from a TOML file and from the environment mean what they mean in a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import compress, product
from pathlib import Path
from typing import Any

import pytest
import typer

from reput.cli import app
from reput.cli.configfile import ConfigFile, named_parameters
from reput.cli.options import spark_conf
from tests.cli.test_errors import assert_one_line
from tests.cli.test_terminal import all_commands
from tests.support.cli import Call, json_object

ROOT_COMMAND = typer.main.get_command(app)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "reput.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def toml(value: object) -> str:
    """A value as TOML has it: JSON is a part of that."""
    return json.dumps(value)


def sample(parameter: Any) -> Any:
    """A value that an option takes and that is not its default."""
    if getattr(parameter, "is_flag", False):
        return not parameter.default
    choices = getattr(parameter.type_descriptor, "choices", None)
    if choices:
        return str(choices[-1])
    return 20 if parameter.type_descriptor.annotation in (int, float) else "7"


def words_of_call(parameter: Any, value: Any) -> list[str]:
    """The words that give an option its value in a call."""
    if not parameter.opts[0].startswith("-"):
        return [str(value)]
    if isinstance(value, bool):
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    return [parameter.opts[0], str(value)]


def parsed(words: str, call: list[str], file: ConfigFile | None) -> dict[str, Any]:
    """The parameters that a command would get."""
    root = ROOT_COMMAND.make_context("reput", ["--version-is-not-asked"], resilient_parsing=True)
    root.obj = file
    parent, command = root, ROOT_COMMAND
    *groups, last = words.split()
    for word in groups:
        command = command.commands[word]  # type: ignore[attr-defined]
        parent = typer.Context(command, parent=parent, info_name=word)
    context = command.commands[last].make_context(last, call, parent=parent)  # type: ignore[attr-defined]
    return dict(context.params)


@pytest.mark.parametrize("words", sorted(all_commands().keys() - {"config show"}))
def test_every_option_can_be_given_elsewhere(
    words: str, written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once: the command gets the same parameters from a file, from variables, and from a
    call. A variable that a unit file leaves empty says nothing."""
    values = {name: sample(one) for name, one in named_parameters(all_commands()[words]).items()}
    named = named_parameters(all_commands()[words])
    call = [word for name, one in named.items() for word in words_of_call(one, values[name])]
    expected = parsed(words, call, None)
    lines = [f"{name} = {toml(value)}" for name, value in values.items()]
    table = ".".join(words.split())
    file = ConfigFile(written("\n".join([f"[{table}]", *lines])))
    assert parsed(words, [], file) == expected
    variables = {
        "_".join(("reput", *words.split(), name)).replace("-", "_").upper(): toml(value).strip('"')
        for name, value in values.items()
    }
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    assert parsed(words, [], None) == expected
    for variable in variables:
        monkeypatch.setenv(variable, "")
    assert parsed(words, [], file) == expected


def test_a_spark_setting_ends_its_name_at_the_first_equals_sign() -> None:
    """As ``spark-submit --conf`` reads it: a value such as a Java option has more of them."""
    java, user = "-Duser.timezone=UTC -Da==b", "a=b"
    pairs = [f"spark.driver.extraJavaOptions={java}", f"spark.executorEnv.A={user}", "spark.x="]
    wanted = {"spark.driver.extraJavaOptions": java, "spark.executorEnv.A": user, "spark.x": ""}
    assert spark_conf("--conf", pairs) == wanted


@pytest.mark.parametrize("places", list(product((False, True), repeat=4)))
def test_the_strongest_place_counts(
    places: tuple[bool, ...],
    written: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
) -> None:
    """Call, environment, the command's table, the top of the file, default, in this order."""
    values = ("1m", "2m", "3m", "4m")
    in_call, in_environment, in_table, on_top = places
    lines = [
        'max-bytes-per-trigger = "4m"' if on_top else "",
        "[run]",
        'max-bytes-per-trigger = "3m"' if in_table else "",
    ]
    path = written("\n".join(lines))
    if in_environment:
        monkeypatch.setenv("REPUT_RUN_MAX_BYTES_PER_TRIGGER", "2m")
    monkeypatch.setenv("REPUT_CONFIG", str(path))
    words = ["--max-bytes-per-trigger", "1m"] if in_call else []
    done = call("config", "show", "--json", "run", "/store", *words)
    (found,) = (one for one in json.loads(done.stdout) if one["option"] == "max-bytes-per-trigger")
    names = (
        "call", "environment, REPUT_RUN_MAX_BYTES_PER_TRIGGER", f"[run] of {path}", str(path)
    )  # fmt: skip
    first = next(compress(zip(values, names, strict=True), places), ("16g", "default"))
    assert (found["value"], found["from"]) == first


def test_a_command_runs_with_what_a_file_says(
    golden: Callable[[str], Path], written: Callable[[str], Path], call: Call
) -> None:
    """Its arguments among it; its answer is that of the same call. Logs are JSON, too."""
    store = golden("plain")
    path = written(f"store = {toml(str(store))}\n[inspect.record]\noffset = 0\njson = true\n")
    expected = json_object(call("inspect", "record", store, 0, "--json"))
    assert json_object(call("--config", path, "inspect", "record")) == expected
    path = written(f"[status]\njson = true\nstore = {toml(str(store / 'nowhere'))}\n")
    failed = call("--config", path, "status")
    assert failed.returncode == 1
    assert "nowhere" in json.loads(failed.stderr)["event"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[run]\nmax-byte-per-trigger = 1", ("[run] of ", "did you mean max-bytes-per-trigger?")),
        ('outpt = "x"', ("outpt", "did you mean output?")),
        ("[rum]\nonce = true", ("no command is named 'rum'", "did you mean run?")),
        ("run = 3", ("run must be a table",)),
        ("[run]\nonce = 1", ("once is 1", "must be true or false")),
        ("[run]\noutput = true", ("output is True", "must be one text or number")),
        ("[run]\noutput = [1, 2]", ("output is [1, 2]", "must be one text or number")),
        ("[run]\nconf = [[1]]", ("conf is [1]", "must be one text or number")),
        ('[run]\nlatency = "soon"', ("soon", "a number with ms, s, m, h or d")),
        ("[run", ("is no TOML",)),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong(
    text: str, parts: tuple[str, ...], written: Callable[[str], Path], call: Call, tmp_path: Path
) -> None:
    """One line with file, table and key; exit code 2."""
    assert_one_line(call("--config", written(text), "run", tmp_path), 2, *parts)


def test_a_file_that_is_missing(call: Call, tmp_path: Path) -> None:
    """Named in the call or by the environment."""
    assert_one_line(
        call("--config", tmp_path / "none", "status", tmp_path), 2, "cannot read", "none"
    )


def test_an_option_of_another_command_is_passed_over(
    golden: Callable[[str], Path], written: Callable[[str], Path], call: Call
) -> None:
    """At the top it counts where it is known."""
    path = written('max-bytes-per-trigger = "1m"\n[serve]\nlisten = "127.0.0.1:1"\n')
    assert call("--config", path, "inspect", "record", golden("plain"), 0).returncode == 0


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("nope",), ("no command is named 'nope'",)),
        (("checkpoint", "list"), ("did you mean checkpoints?",)),
        (("checkpoints",), ("is a group of commands", "rewind")),
    ],
)
def test_show_of_no_command(words: tuple[str, ...], parts: tuple[str, ...], call: Call) -> None:
    """One line."""
    assert_one_line(call("config", "show", *words), 2, *parts)


def test_the_innermost_table_of_a_file_counts(written: Callable[[str], Path]) -> None:
    """A group's table is for each of its commands, and stands above what is for all."""
    lines = ('output = "top"', "[checkpoints]", 'output = "group"', "[checkpoints.prune]")
    file = ConfigFile(written("\n".join([*lines, 'output = "command"'])))
    for words, output in (
        ("checkpoints prune", "command"), ("checkpoints list", "group"), ("groups list", "top"),
        ("expire", "top"),
    ):  # fmt: skip
        assert parsed(words, ["/store"], file)["output"] == Path(output), words


def test_an_option_that_is_repeated_has_all_of_its_values(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list in a file, words in a variable; one alone is one, whatever it has in it."""
    for value, wanted in (
        ('["A", "B c"]', ["A", "B c"]),
        ('"A b"', ["A b"]),
        ("[1, 2]", ["1", "2"]),
    ):
        file = ConfigFile(written(f"[lag]\ntopic = {value}\n"))
        assert parsed("lag", ["/store"], file)["topic"] == wanted
    monkeypatch.setenv("REPUT_LAG_TOPIC", "A  B\tC")
    assert parsed("lag", ["/store"], None)["topic"] == ["A", "B", "C"]
    monkeypatch.setenv("REPUT_STATUS_STORE", "/a b")
    assert parsed("status", [], None)["store"] == Path("/a b")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("True", True), ("TRUE", True), ("1", True), ("false", False),
     ("False", False), ("0", False)],
)  # fmt: skip
def test_a_switch_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    """As unit files and shells write it; it stands above a file."""
    monkeypatch.setenv("REPUT_EXPIRE_APPLY", text)
    assert parsed("expire", ["/store"], None)["apply"] is value


@pytest.mark.parametrize("text", ["yes", "2", "no", "tru"])
def test_a_switch_in_the_environment_that_is_neither(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The variable is named, and the command does not run."""
    monkeypatch.setenv("REPUT_EXPIRE_APPLY", text)
    line = f"REPUT_EXPIRE_APPLY is {text!r}; it must be true or false"
    assert_one_line(call("expire", tmp_path), 2, line)


def test_a_time_of_a_file_is_that_time(written: Callable[[str], Path]) -> None:
    """TOML has times of its own; they are taken as the text of an option is."""
    for value, text in (
        ("2026-01-31T12:30:00Z", "2026-01-31T12:30:00+00:00"),
        ("2026-01-31T12:30:00", "2026-01-31T12:30:00"), ("2026-01-31", "2026-01-31"),
        ("1769860800000", "1769860800000"),
    ):  # fmt: skip
        file = ConfigFile(written(f"[tail]\nfrom-time = {value}\n"))
        assert parsed("tail", ["/store", "T"], file)["from_time"] == text


def test_an_option_without_a_value_has_none(call: Call) -> None:
    """A switch is true or false, and a time that nobody gave no text."""
    shown = json.loads(call("config", "show", "--json", "tail", "/store", "T", "-f").stdout)
    found = {one["option"]: (one["value"], one["from"]) for one in shown}
    assert found["from-time"] == found["output"] == (None, "default")
    assert found["follow"] == (True, "call")
    assert found["fail-on-data-loss"] == (False, "default")
    assert found["count"] == ("10", "default")
    words = ("run", "/store", "--conf", "a=b", "--conf", "c=d e")
    shown = json.loads(call("config", "show", "--json", *words).stdout)
    (several,) = (one["value"] for one in shown if one["option"] == "conf")
    assert several == "a=b c=d e"
