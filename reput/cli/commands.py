"""Commands and groups whose ``--help`` shows no value beside the flags that typer adds."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Plain:
    """Removes the type that typer shows beside an option without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return every parameter, with those that typer adds. Called for help and for parsing."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_Plain, TyperCommand):
    """A command of ``reput``."""


class Group(_Plain, TyperGroup):
    """A group of commands under one name."""
