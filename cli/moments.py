"""The options that name a moment of an output, as of which it is read."""

from __future__ import annotations

import re
from pathlib import Path

from reput.cli import options
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import NotFoundError, UsageError
from reput.store.log.places import AsOf

_NUMBERED = re.compile(r"(offset|batch):([0-9]{1,18})\Z", re.ASCII)


def as_of(name: str, text: str | None, settings: StoreSettings, output: Path) -> AsOf | None:
    """Return the moment that an option means; None if it is not given.

    It is a store time, ``offset:N``, or ``batch:N`` of the checkpoint below ``output``. Raises
    UsageError naming the option, and NotFoundError for a batch that is not listed any more.
    """
    if text is None:
        return None
    match = _NUMBERED.match(text)
    if match is None:
        if text.startswith(("offset:", "batch:")):
            raise UsageError(
                f"{name} is {text!r}; it must be offset:N or batch:N, a whole number of "
                "up to 18 digits"
            )
        return AsOf(time_ms=options.time_option_ms(name, text))
    number = int(match[2])
    return AsOf(offset=number if match[1] == "offset" else _end_of(number, settings, output))


def _end_of(batch_id: int, settings: StoreSettings, output: Path) -> int:
    from reput.upkeep.checkpoints import read_positions  # noqa: PLC0415

    positions = read_positions(settings, output, None)
    batch = positions.history.batch(batch_id)
    if batch is None:
        raise NotFoundError(
            f"no batch {batch_id} in {positions.spark_directory}; "
            f"{command_line('checkpoints list', settings.root, output)} shows those that "
            "are there, and offset:N takes the end of any"
        )
    return batch.end
