"""The options of the command line that stand for the settings in a line of the library.

Below the command line a line names a setting as a program gives it: `broker_conf=`, or with a value
`output=DIR`. Whoever calls a command is shown its option there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

SETTING = re.compile(r"`(?P<name>[A-Za-z]+\.?[a-z_]+)=(?P<value>\w*)`")

_PHRASES = {
    "fail_on_data_loss=False": "commands: leave out --fail-on-data-loss",
    "DispatcherConfig.fail_on_corrupt=False": "run: --on-corrupt",
    "MessageStore.fail_on_data_loss=False": "other commands: leave out --fail-on-data-loss",
}
"""Settings whose option is another one from command to command."""
_FLAGS = {
    "Appender.file_size": "--commitlog-file-size",
    "DeltaTarget.store_id": "--delta-store-id",
    "IcebergTarget.store_id": "--iceberg-store-id",
    "KafkaArrivalsTarget.topic": "--kafka-arrivals",
    "KafkaSettings.max_message_bytes": "--kafka-max-message-bytes",
    "KafkaSettings.store_id": "--kafka-store-id",
    "kinds": "--only",
    "topics": "--topic",
}
"""Settings whose option has another name, and that have no row which states it."""


def with_flags(line: str) -> str:
    """Return a line of the library as a user of the command line reads it."""
    return SETTING.sub(_option, line) if "=" in line and "`" in line else line


def _option(setting: re.Match[str]) -> str:
    name, value = setting["name"], setting["value"]
    phrase = _PHRASES.get(f"{name}={value}")
    flag = _flags().get(name) or f"--{name.replace('_', '-')}"
    return phrase or f"{flag} {value}".rstrip()


@cache
def _flags() -> Mapping[str, str]:
    """Setting -> option, for all whose names differ by more than their dashes."""
    # imported here, because few lines name a setting, and ``--help`` needs neither
    from reput.serving.config import ServerConfig  # noqa: PLC0415
    from reput.store.config import StoreSettings  # noqa: PLC0415
    from reput.store.flags import flags_of  # noqa: PLC0415
    from reput.streaming.config import DispatcherConfig  # noqa: PLC0415

    rows = [*map(flags_of, (StoreSettings, ServerConfig, DispatcherConfig))]
    return {field: row.name for of_one in rows for field, row in of_one.items()} | _FLAGS
