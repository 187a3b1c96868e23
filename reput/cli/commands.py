"""Commands and groups whose ``--help`` shows no value for the flags that typer itself adds."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Plain:
    """Typer names the type of every option, also of one that takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Every parameter, those that typer adds too. Called for help and for parsing."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_Plain, TyperCommand):
    """A command of ``reput``."""


class Group(_Plain, TyperGroup):
    """Commands under one name."""
