"""Configurations of a dispatcher, with settings named as options are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from reput.store.state.built import SETTINGS, index_flags
from reput.streaming.config import DispatcherConfig


def configured(
    store: Path, output: Path, *, index: bool | None = None, **options: Any
) -> DispatcherConfig:
    """A configuration: settings of the output among ``options`` become its flags."""
    own = {field.name for field in fields(DispatcherConfig)}
    names = {setting.field for setting in SETTINGS} & (options.keys() - own)
    flags = {name: options.pop(name) for name in names}
    return DispatcherConfig(store, output, flags=index_flags(index) | flags, **options)
