"""The command line: a file for each command, which reads options, calls the library and prints what
it returns. No decision about data is made here.

Exit codes: 0 for done, 1 for failed, 2 for called wrongly. An error is one line on stderr.

A command's module is imported when the command is called, and what is heavy (Spark, Arrow, numba:
more than a second together) when it runs, so that no command waits for the packages of another.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

# typer's checks need no plugins of pydantic, for which it would search all that is installed
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

import typer

import reput
from reput.cli.commands import MARKUP, DeferredCommand, Group
from reput.cli.configfile import CONFIG_VARIABLE, ConfigFile
from reput.cli.render import fail, set_up, system_line
from reput.store.errors import ReputError

_STDOUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Numbers of an OSError without a file name that mean that standard output cannot be written."""

_USAGE_WORDS = (
    # pydantic, which checks values for typer, has words of its own
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to .*", "it must be a whole number"),
    ("Input should be ", "it must be "),
    # a second sentence
    (r"\. Did you mean (.*)\?$", r" (did you mean \1?)"),
)
"""Expressions for typer's words, and what they become in a line of ours."""

_COMMANDS = {
    "run": (
        "run:run",
        "Dispatch a store's commitlog into consume queues, following it until stopped.",
    ),
    "serve": (
        "serve:serve",
        "Serve queues of stores to RocketMQ's consumers: a name server, and a broker for each "
        "store.",
    ),
    "status": (
        "status:status",
        "Show the log's end, the watermark, the lag, the quarantine and every topic's queues.",
    ),
    "doctor": (
        "doctor:doctor",
        "Look at a store and its output for everything that is wrong, and name the command for it.",
    ),
    "top": (
        "top:top",
        "Watch rates, lag, queues, batches, followers and faults of an output on a terminal.",
    ),
    "expire": (
        "expire:expire",
        "Show, or remove, the queue files whose messages the log no longer holds.",
    ),
    "verify": (
        "verify:verify",
        "Compare queues and index up to the watermark with the log; exit code 1 if any differs, or "
        "the log is damaged where it was sound.",
    ),
    "get": (
        "read:get",
        "Show one message, of a place in a queue or by its id; exit code 1 if there is none.",
    ),
    "tail": (
        "read:tail",
        "Show a topic's last messages in the order in which they were stored.",
    ),
    "query": (
        "read:query",
        "Show the newest messages with a key, which the index finds; exit code 1 if there is none.",
    ),
    "trace": (
        "trace:trace",
        "Show when a message was sent and consumed, from the traces that clients have stored.",
    ),
    "search-time": (
        "read:search_time",
        "Find the queue offset of a time; exit code 1 if there is no such queue.",
    ),
    "lag": (
        "groups:lag",
        "Show the lag of consumer groups in each of their topics.",
    ),
    "sql": (
        "sql:sql",
        "Query the log in SQL: `select topic, count(*) from messages group by topic`.",
    ),
    "export": (
        "export:export",
        "Write a range of the log as Parquet files with a row per message.",
    ),
    "diff": (
        "diff:diff",
        "Compare two stores' queues and indexes, and name the first entry of each that differs.",
    ),
    "shadow": (
        "shadow:shadow",
        "Follow a live broker into an output of its own, and compare both sides' queues as they "
        "grow.",
    ),
    "rebuild": (
        "rebuild:rebuild",
        "Build queues and index anew from a store's commitlog, compare, and swap them in.",
    ),
    "produce": (
        "produce:produce",
        "Append made-up messages to a store's commitlog, which is created if it is missing.",
    ),
    "demo": (
        "demo:demo",
        "Run the whole pipeline on generated messages, and check every one of them.",
    ),
    "prepare": (
        "prepare:prepare",
        "Halve the start time of every later run; takes half a minute, once per installation.",
    ),
    "table": (
        "table:app",
        "Compact Delta and Iceberg tables, and expire them.",
    ),
    "inspect": (
        "inspect:app",
        "Show records, queues and positions as they are, without writing.",
    ),
    "checkpoints": (
        "checkpoints:app",
        "Show, check and rewind the positions of an output. `list` may be left out.",
    ),
    "config": (
        "config:app",
        "Show what a command would run with.",
    ),
    "groups": (
        "groups:app",
        "Show consumer groups with their lag, and move their offsets. `list` may be left out.",
    ),
    "overlay": (
        "overlay:app",
        "Show what consuming has left in an overlay, and send it into a broker.",
    ),
    "dlq": (
        "dlq:app",
        "Show dead letters of an overlay, and send them again. `list` may be left out.",
    ),
}
"""Name -> the place of its function or group, and its line in ``--help``, the first paragraph of
its own help; in the order of ``--help``."""


class _CommandLine(Group):
    """The commands of ``_COMMANDS``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        deferred: dict[str, Any] = {
            name: DeferredCommand(name, *entry) for name, entry in _COMMANDS.items()
        }
        self.commands.update(deferred)


app = typer.Typer(
    name="reput",
    cls=_CommandLine,
    help="RocketMQ's message dispatch as a Spark Structured Streaming job.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"reput {reput.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
    config: Annotated[
        Path | None,
        typer.Option(envvar=CONFIG_VARIABLE, metavar="FILE", help="TOML file of options."),
    ] = None,
) -> None:
    context.obj = ConfigFile(config) if config else None


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code; an error is one line on stderr."""
    _open_standard_streams()
    # read before anything is parsed, so that errors in the call itself are JSON, too
    as_json = not {"--json", "-j"}.isdisjoint(sys.argv)
    set_up(as_json)
    try:
        try:
            sys.exit(app(standalone_mode=False))
        finally:
            sys.stdout.flush()
    except typer.TyperException as error:
        line = _usage_line(error)
        if not line:
            # a group called without a command has shown its help
            sys.exit(error.exit_code)
        fail(line, error.exit_code)
    except ReputError as error:
        fail(str(error), error.exit_code, error.fields)
    except OSError as error:
        _leave_stdout()
        if error.filename is not None:
            fail(system_line(error), 1)
        if error.errno not in _STDOUT_ERRORS:
            raise
        if error.errno == errno.EPIPE:
            # the reader of our output has closed the pipe and needs no message
            sys.exit(1)
        fail(f"cannot write to standard output: {error.strerror}", 1)


def _usage_line(error: typer.TyperException) -> str:
    """Return typer's message as an error line of ours, with a pointer to the command's help; empty
    if help was printed instead."""
    text = error.format_message().rstrip(".")
    if not text:
        return ""
    for theirs, ours in _USAGE_WORDS:
        text = re.sub(theirs, ours, text)
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context is not None else ""
    return f"{text[0].lower()}{text[1:]}{hint}"


def _open_standard_streams() -> None:
    """Open /dev/null in place of each stream that the caller has closed.

    Otherwise a file of ours could get its number, and our output would go into that file.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _leave_stdout() -> None:
    """Let the interpreter's last flush succeed: the error line reports the failure already."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
