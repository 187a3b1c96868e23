"""The library names settings, and the command line shows its own options in their place."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from reput.cli import app, options
from reput.cli.settingflags import SETTING, with_flags
from reput.serving.config import ServerConfig
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import CorruptRecordError, UsageError
from reput.store.flags import flagged, flags_of
from reput.streaming.config import DispatcherConfig
from tests.support.cli import ROOT, Call

BELOW = (
    "store", "filters", "sources", "sinks", "readers", "serving", "checkpoints", "overlay",
    "streaming", "upkeep", "workload",
)  # fmt: skip
ROWS = {"Flag", "flagged", "Option", "Series"}
"""Calls that declare what users of the command line read."""
CONFIGURATIONS = (StoreSettings, ServerConfig, DispatcherConfig)
DISPATCHING = ("run", "shadow", "rebuild")
COMMANDS = {"command_line", "command", "_command"}
"""Calls that make a whole command of words."""
WHOLE_COMMAND = re.compile(r"reput [a-z-]+(?: (?:--[a-z-]+(?: [\w{%]\S*)?|[A-Z{%]\S*))*")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def literals(tree: ast.AST, above: tuple[ast.AST, ...] = ()) -> Iterator[tuple[str, list[ast.AST]]]:
    """Each text with the nodes around it, the nearest last; what an f-string inserts is ``{}``."""
    if isinstance(tree, ast.JoinedStr):
        parts = [str(one.value) if isinstance(one, ast.Constant) else "{}" for one in tree.values]
        yield "".join(parts), [*above]
    elif isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value, [*above]
    inner = tree.values if isinstance(tree, ast.JoinedStr) else ast.iter_child_nodes(tree)
    for child in inner:
        if not (isinstance(tree, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from literals(child, (*above, tree))


def flags_in(source: str) -> list[str]:
    """The texts of a module that name an option of the command line, outside of a whole command."""
    return [
        text
        for text, above in literals(ast.parse(source))
        if FLAG.search(WHOLE_COMMAND.sub("", text)) and not _is_allowed(text, above)
    ]


def _is_allowed(text: str, above: list[ast.AST]) -> bool:
    callees = {
        getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        for node in above
        if isinstance(node, ast.Call)
    }
    is_word = text.startswith("--") and " " not in text
    is_one_of_several = isinstance(above[-1], ast.Tuple | ast.List | ast.GeneratorExp)
    is_docstring = isinstance(above[-1], ast.Expr)
    return (
        is_docstring
        or not callees.isdisjoint(ROWS)
        or (is_word and (is_one_of_several or not callees.isdisjoint(COMMANDS)))
    )


def modules() -> list[Path]:
    return [path for room in BELOW for path in sorted((ROOT / room).rglob("*.py"))]


def options_of(command: Any) -> set[str]:
    """The options of a command, and of all that it groups."""
    own = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    inner = getattr(command, "commands", {}).values()
    return own.union(*map(options_of, inner))


def test_below_the_command_line_no_text_names_an_option() -> None:
    """Neither an error nor a line of the log, except in a command that is written whole."""
    named = {
        str(path.relative_to(ROOT)): texts
        for path in modules()
        if (texts := flags_in(path.read_text("utf-8")))
    }
    assert named == {}


@pytest.mark.parametrize(
    ("source", "is_seen"),
    [
        ('raise UsageError("pass another with --broker-conf")', True),
        ('raise UsageError(f"{path}: pass another (--broker-conf)")', True),
        ('raise UsageError(f"`--stores` is {pattern!r}")', True),
        ('check("--columns", columns)', True),
        ('ADVICE = "see reput run STORE --once, or give --adopt"', True),
        ('ADVICE = "reput rebuild --on-queue-gap blank keeps each message"', False),
        ('line = "reput rebuild --topic %s --from %d gives its queues"', False),
        ("line = f\"use {command_line('run', root, None, '--adopt', '--once')}\"", False),
        ('words = ("--topic", topic)', False),
        ('row = Flag("--verify-crc/--no-verify-crc", "Check the CRC.", PANEL)', False),
        ('"""The content of the last line of ``--json``."""', False),
    ],
)
def test_the_checker_sees_an_option(source: str, is_seen: bool) -> None:
    assert bool(flags_in(source)) is is_seen


def test_each_setting_that_a_text_names_is_an_option_of_a_command() -> None:
    """An f-string inserts only fields that have a flag."""
    known = options_of(typer.main.get_command(app))
    texts = [f"`{name}=`" for config in CONFIGURATIONS for name in flags_of(config)]
    for path in modules():
        for text, above in literals(ast.parse(path.read_text("utf-8"))):
            if not isinstance(above[-1], ast.Expr):
                texts += [one.group() for one in SETTING.finditer(text)]
    assert len(texts) > 40
    for text in texts:
        shown = FLAG.findall(with_flags(text))
        assert shown, text
        assert known.issuperset(shown), text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("pass another with `broker_conf=`", "pass another with --broker-conf"),
        ("write elsewhere with `output=DIR`", "write elsewhere with --output DIR"),
        ("`is_tls_required=` needs `tls_cert=FILE`", "--tls-required needs --tls-cert FILE"),
        ("set `on_queue_gap=` to rocketmq", "set --on-queue-gap to rocketmq"),
        ("with `first_position=rocketmq` they begin", "with --positions rocketmq they begin"),
        ("raise `KafkaSettings.max_message_bytes=` (9)", "raise --kafka-max-message-bytes (9)"),
        ("one identity (`DeltaTarget.store_id=`)", "one identity (--delta-store-id)"),
        ("one identity (`IcebergTarget.store_id=`)", "one identity (--iceberg-store-id)"),
        ("another `KafkaSettings.store_id=`", "another --kafka-store-id"),
        ("another `KafkaArrivalsTarget.topic=`", "another --kafka-arrivals"),
        ("with `Appender.file_size=4096`", "with --commitlog-file-size 4096"),
        ("a = `b`; [COLUMN] `topic` is not there", "a = `b`; [COLUMN] `topic` is not there"),
        ("`x y=1` and `=` and `output`", "`x y=1` and `=` and `output`"),
    ],
)
def test_a_setting_is_shown_as_its_option(line: str, shown: str) -> None:
    """By its row, where it has one; what others write in backquotes stays."""
    assert with_flags(line) == shown


def test_each_dispatching_command_has_the_options_of_its_rows() -> None:
    command: Any = typer.main.get_command(app)
    for row in flags_of(DispatcherConfig).values():
        having = [name for name in DISPATCHING if row.name in options_of(command.commands[name])]
        assert having == [*(row.commands or DISPATCHING)], row.name


@dataclass(frozen=True)
class Made:
    """A configuration of a program; its rows are all that is said of its options."""

    size: int = flagged(1 << 20, "--size", "A size.", metavar="SIZE", shown="1m")
    pause_ms: int = flagged(0, "--pause", "A time.", metavar="TIME", shown="0ms")
    place: Path | None = flagged(None, "--place", "A place.", metavar="DIR")
    is_strict: bool = flagged(
        False, "--when", "When.", metavar="HOW", shown="later", words={"later": False, "now": True}
    )
    twice: bool = flagged(False, "--twice", "A switch.")
    thrice: bool = flagged(True, "--thrice/--no-thrice", "A switch with another side.")
    conf: dict[str, str] = flagged(dict, "--conf", "Pairs.", metavar="KEY=VALUE")
    inner: int = 7


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("", Made()),
        ("--size 2k --pause 3s --place x", Made(2048, 3000, Path("x"))),
        ("--when now --twice --no-thrice", Made(is_strict=True, twice=True, thrice=False)),
        ("--conf spark.a=1 --conf spark.a=2", Made(conf={"spark.a": "2"})),
    ],
)
def test_a_row_is_all_that_an_option_takes(words: str, made: Made) -> None:
    """This holds for any configuration; what is not given is left to the field."""
    found = []
    command = typer.Typer()

    @command.command()
    @options.with_options(given=options.fields_given(Made, *flags_of(Made)))
    def run(given: dict[str, Any]) -> None:
        found.append(Made(**given))

    command(words.split(), standalone_mode=False)
    assert found == [made]


def test_damage_names_the_options_of_all_that_stop_at_it() -> None:
    line = str(CorruptRecordError("/log/0", 12, 20, "BAD_MAGIC"))
    assert "--" not in line
    assert with_flags(line).endswith(
        "8 bytes are no record; to list the range and continue after it, set onCorrupt to "
        "quarantine (run: --on-corrupt; other commands: leave out --fail-on-data-loss)"
    )


def test_a_program_reads_the_setting_and_a_user_the_option(tmp_path: Path, call: Call) -> None:
    """The same state, also where a report holds the error of one of several stores."""
    store = tmp_path / "stores" / "a"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").write_text("storePathCommitLog=elsewhere\n")
    with pytest.raises(UsageError) as caught:
        read_store_settings(store)
    assert str(caught.value).endswith("in another file (`broker_conf=`)")
    for extra in ((), ("--json",)):
        done = call("status", store, *extra)
        assert "in another file (--broker-conf)" in done.stderr
        assert "`" not in done.stderr
    several = ("status", "--stores", store.parent / "*", "--outputs", tmp_path / "outputs")
    (row,) = json.loads(call(*several, "--json").stdout)["stores"]
    assert row["error"].endswith("in another file (--broker-conf)")
    assert "in another file (--broker-conf)" in call(*several, "--check").stdout


def test_an_error_in_json_says_whether_another_try_may_do(tmp_path: Path, call: Call) -> None:
    """A store that is not there may come; a wrong call stays wrong."""
    for words, retriable in ((("status", tmp_path), True), (("diff", tmp_path), False)):
        (line,) = call(*words, "--json").stderr.splitlines()
        assert json.loads(line)["retriable"] is retriable, words


@pytest.mark.parametrize("flag", ["--json", "-j"])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_in_the_call_itself_is_json(call: Call, flag: str, is_first: bool) -> None:
    """Wherever the flag stands, and in either form."""
    words = ("status", flag, "--nonsense") if is_first else ("status", "--nonsense", flag)
    done = call(*words)
    (line,) = done.stderr.splitlines()
    found = json.loads(line)
    assert (done.returncode, found["level"], done.stdout) == (2, "error", "")
    assert "--nonsense" in found["event"]
