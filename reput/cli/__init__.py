"""The command line: a file per command, data in, text out. Nothing is decided here.

Exit codes: 0 done, 1 failed, 2 called wrongly. Errors are one line on stderr.

Commands import what is heavy (Spark, Arrow, numba: more than a second together) when they run, so
that no command waits for what another needs.
"""

from __future__ import annotations

import os
import sys

import typer

from reput import __version__
from reput.cli import (
    demo,
    diff,
    expire,
    export,
    inspect,
    prepare,
    produce,
    read,
    rebuild,
    run,
    sql,
    status,
    verify,
)
from reput.cli.render import fail
from reput.guard import foreign_packages
from store.errors import ReputError

app = typer.Typer(
    name="reput",
    help="RocketMQ's message dispatch as a Spark Structured Streaming job.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("run")(run.run)
app.command("status")(status.status)
app.command("expire")(expire.expire)
app.command("verify")(verify.verify)
app.add_typer(inspect.app, name="inspect")
app.command("get")(read.get)
app.command("tail")(read.tail)
app.command("query")(read.query)
app.command("search-time")(read.search_time)
app.command("sql")(sql.sql)
app.command("export")(export.export)
app.command("diff")(diff.diff)
app.command("rebuild")(rebuild.rebuild)
app.command("produce")(produce.produce)
app.command("demo")(demo.demo)
app.command("prepare")(prepare.prepare)


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
    """Entry point of the ``reput`` command."""
    problems = foreign_packages()
    if problems:
        fail(f"{'; '.join(problems)}; install reput into an environment of its own", 1)
    try:
        app()
    except ReputError as error:
        fail(str(error), error.exit_code)
    except BrokenPipeError:
        # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
