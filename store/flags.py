"""The options of the command line that give the fields of a configuration.

A field's ``Flag`` is all that its option takes: from these rows follow the commands' options, with
their names in a file and in the environment, the tables of the documentation, and the option that a
line of the library shows in place of a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

STORE_PANEL, DAMAGE_PANEL = "Settings of store and Spark", "Damage and gaps"
INDEX_PANEL, CLIENTS_PANEL = "Index of keys", "Clients that are served"
"""Headings in the help."""


@dataclass(frozen=True, slots=True)
class Flag:
    """The command line's option for a field; a program gives the field."""

    names: str
    help: str
    panel: str | None = None
    metavar: str | None = None
    """The kind of its value; None for a switch."""
    shown: str | None = None
    """The value that the help shows as the default; None where the field stays as it is."""
    words: Mapping[str, Any] | None = None
    """The words that may be given, each with the field's value; None for any of the field's type.
    """
    commands: tuple[str, ...] = ()
    """The commands that have it, of those which take such a configuration; empty for all."""

    @staticmethod
    def of(config: type, field_name: str) -> Flag:
        """The option of a field."""
        return flags_of(config)[field_name]

    @property
    def name(self) -> str:
        """The option, as an error names it."""
        return self.names.partition("/")[0]

    @property
    def parameter(self) -> str:
        """The option's name in Python."""
        return self.name.removeprefix("--").replace("-", "_")


def flags_of(config: type) -> dict[str, Flag]:
    """Field -> its option, for those that have one, in the order of the class."""
    found = ((row.name, row.metadata.get("flag")) for row in fields(config))
    return {name: flag for name, flag in found if flag is not None}


def flagged(
    default: Any, names: str, help: str, panel: str | None = None, metavar: str | None = None,
    **more: Any,
) -> Any:  # fmt: skip
    """A field with a default and an option; for a mapping, the default makes an empty one."""
    make = {"default_factory": default} if default is dict else {"default": default}
    return field(metadata={"flag": Flag(names, help, panel, metavar, **more)}, **make)
