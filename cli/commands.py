"""typer's commands and groups, without the type that ``--help`` shows beside flags, and what stands
for a command until it is called."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from reput.cli.configfile import Given, name_of, values_given
from reput.cli.render import set_log_level, set_up

MARKUP: Final = "markdown"
"""The markup of docstrings, which are the commands' help."""
_MAX_LONG = (1 << 63) - 1
"""The largest offset, count or time there is: a Java long."""
_PLAIN_DIGITS = 18
"""Digits of a whole number that is surely within 64 bits."""


class _Conversion:
    """Takes the values that are right as they are: texts, paths and whole numbers. Any other value
    goes to typer, which converts it or says what is wrong, by pydantic; to load that takes longer
    than to load all else that ``reput get`` needs."""

    def __init__(self, param: Any) -> None:
        descriptor = param.type_descriptor
        kind = next(iter(get_args(descriptor.annotation)), descriptor.annotation)
        self._type = kind if isinstance(kind, type) else ()
        self._limits = descriptor.parameter_info
        self._by_typer = param.get_runtime_param

    def __call__(self) -> _Conversion:
        """Return itself, since it stands in the place of typer's method that returns one."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value of the parameter's type, or nothing for None. Called by typer."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        are_several = isinstance(value, list | tuple)
        given = value if are_several else [value]
        if self._type is Path and "" in given:
            # pathlib would take it for the current directory
            raise typer.BadParameter("it is empty; give a path", ctx=ctx, param=param)
        converted = [self._converted(item) for item in given]
        if None in converted:
            typed = self._by_typer().coerce(value, param=param, ctx=ctx)
            taken = typed if are_several else [typed]
            if any(isinstance(each, int) and abs(each) > _MAX_LONG for each in taken):
                raise typer.BadParameter(
                    f"it must be a whole number up to {_MAX_LONG}", ctx=ctx, param=param
                )
            return typed
        return converted if are_several else converted[0]

    def _converted(self, value: Any) -> Any:
        """Return None for a value that is left to typer."""
        if isinstance(value, str):
            if not value.isprintable():
                return None
            if self._type is Path:
                return Path(value)
            if self._type is int and self._is_within_limits(value):
                return int(value)
        return value if isinstance(value, self._type) else None

    def _is_within_limits(self, text: str) -> bool:
        if not text.isascii() or not text.isdigit() or len(text) > _PLAIN_DIGITS:
            return False
        least, most = self._limits.min, self._limits.max
        return (least is None or least <= int(text)) and (most is None or int(text) <= most)


class _Plain:
    """Removes the type that typer shows beside an option without a value, and spares plain values
    its conversion."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, typer's own included, with no type beside flags. It is called for
        help and for parsing."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            if "get_runtime_param" not in vars(param):
                param.get_runtime_param = _Conversion(param)
        return params


class Command(_Plain, TyperCommand):
    """A command of ``reput``, whose options may also be given by the environment and a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the values that are given elsewhere before those of the call. Called by typer.
        Raises UsageError."""
        given = given_to(ctx)
        names = {name_of(parameter): parameter.name for parameter in self.params}
        ctx.default_map = {names[name]: entry.value for name, entry in given.items()}
        rest: list[str] = super().parse_args(ctx, args)
        if ctx.params.get("as_json"):
            set_up(as_json=True)
        if "log_level" in ctx.params:
            set_log_level(ctx.params["log_level"])
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the command's examples below it. Called by typer."""
        from reput.cli.examples import epilog  # noqa: PLC0415

        self.epilog = epilog(" ".join(words_of(ctx)))
        super().format_help(ctx, formatter)


def given_to(context: Any) -> dict[str, Given]:
    """Return what environment and file give to the command of a context, by the names of its
    options. Raises UsageError."""
    root = context.find_root()
    return values_given(words_of(context), root.command, root.obj)


def words_of(context: Any) -> list[str]:
    """Return the words of a context's command after ``reput``, such as ``groups`` and ``list``."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    return words


class Group(_Plain, TyperGroup):
    """A group of commands under one name."""


class DefaultGroup(Group):
    """A group whose first command may be left out: ``reput groups STORE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the first command's name if ``args``, the words after the group's name, begin with
        none. Called by typer."""
        first = next(iter(self.list_commands(ctx)))
        asks_for_help = not set(args[:1]).isdisjoint(self.get_help_option_names(ctx))
        if args and not asks_for_help and args[0] not in self.commands:
            args = [first, *args]
        return super().parse_args(ctx, args)


class DeferredCommand:
    """Stands for a command or group in lists of commands. Whatever a list does not show is the
    command's own, and the first use of it imports the command's module: its packages take longer
    to import than ``--help`` or another command takes to run."""

    short_help = rich_help_panel = None
    hidden = deprecated = False
    get_short_help_str = TyperCommand.get_short_help_str

    def __init__(self, name: str, place: str, summary: str) -> None:
        """``place`` is the module in ``reput.cli`` and its function or group, with a colon;
        ``summary`` is the first paragraph of the command's help."""
        self.name = name
        self.help = summary
        self._place = place
        self._command: Any = None

    def _imported(self) -> Any:
        module, _, name = self._place.partition(":")
        member = getattr(import_module(f"reput.cli.{module}"), name)
        parent = typer.Typer(rich_markup_mode=MARKUP, pretty_exceptions_enable=False)
        if isinstance(member, typer.Typer):
            parent.add_typer(member, name=self.name)
        else:
            parent.command(self.name, cls=Command)(member)
        return typer.main.get_group(parent).commands[self.name]

    def __getattr__(self, name: str) -> Any:
        self._command = self._command or self._imported()
        return getattr(self._command, name)
