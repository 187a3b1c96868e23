"""typer's commands and groups, without the type that ``--help`` shows beside flags."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Plain:
    """Removes the type that typer shows beside an option without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, typer's own included, with no type beside flags. It is called for
        help and for parsing."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_Plain, TyperCommand):
    """A command of ``reput``."""


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
