"""The command line: a file for each command, which reads options, calls the library and prints what
it returns. No decision about data is made here.

Exit codes: 0 for done, 1 for failed, 2 for called wrongly. An error is one line on stderr.

Commands import heavy packages (Spark, Arrow, numba: more than a second together) when they run, so
that no command waits for the packages of another.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress

import typer

from reput import __version__
from reput.cli import (
    checkpoints,
    demo,
    diff,
    expire,
    export,
    groups,
    inspect,
    prepare,
    produce,
    read,
    rebuild,
    run,
    serve,
    sql,
    status,
    verify,
)
from reput.cli.commands import Command, Group
from reput.cli.render import fail, set_up
from reput.guard import foreign_packages
from store.errors import ReputError

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

app = typer.Typer(
    name="reput",
    cls=Group,
    help="RocketMQ's message dispatch as a Spark Structured Streaming job.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=Command)(run.run)
app.command("serve", cls=Command)(serve.serve)
app.command("status", cls=Command)(status.status)
app.command("expire", cls=Command)(expire.expire)
app.command("verify", cls=Command)(verify.verify)
app.add_typer(inspect.app, name="inspect")
app.command("get", cls=Command)(read.get)
app.command("tail", cls=Command)(read.tail)
app.command("query", cls=Command)(read.query)
app.command("search-time", cls=Command)(read.search_time)
app.add_typer(groups.app, name="groups")
app.command("lag", cls=Command)(groups.lag)
app.command("sql", cls=Command)(sql.sql)
app.command("export", cls=Command)(export.export)
app.add_typer(checkpoints.app, name="checkpoints")
app.command("diff", cls=Command)(diff.diff)
app.command("rebuild", cls=Command)(rebuild.rebuild)
app.command("produce", cls=Command)(produce.produce)
app.command("demo", cls=Command)(demo.demo)
app.command("prepare", cls=Command)(prepare.prepare)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reput {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code; an error is one line on stderr."""
    _open_standard_streams()
    # read before anything is parsed, so that errors in the call itself are JSON, too
    as_json = not {"--json", "-j"}.isdisjoint(sys.argv)
    set_up(as_json)
    problems = foreign_packages()
    if problems:
        fail(f"{'; '.join(problems)}; install reput into an environment of its own", 1)
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
        _leave_stdout()
        fail(str(error), error.exit_code)
    except OSError as error:
        if error.filename is not None or error.errno not in _STDOUT_ERRORS:
            raise
        _leave_stdout()
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
