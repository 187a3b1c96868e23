"""The switch between Spark's public ways alone and the faster private ones (decision 0022).

Private parts of pyspark and py4j make a run start and run faster. Where ``REPUT_PLAIN_SPARK`` is
set, or a private part is not as expected, a run does without all of them. An environment variable
is the switch because each process of a run inherits it: the driver, its JVM and Python's workers.
"""

from __future__ import annotations

import logging
import os

PLAIN_VARIABLE = "REPUT_PLAIN_SPARK"
_NOT_SET = ("", "0", "false")

logger = logging.getLogger("reput")


def is_plain() -> bool:
    """Return whether this process uses Spark's public ways alone."""
    return os.environ.get(PLAIN_VARIABLE, "") not in _NOT_SET


def go_plain(reason: str) -> None:
    """Turn the switch for this process and those that it starts from now on, and log ``reason`` in
    one line; do nothing where it is turned already."""
    if not is_plain():
        os.environ[PLAIN_VARIABLE] = "1"
        logger.warning("%s: going on with plain Spark, which starts slower", reason)
