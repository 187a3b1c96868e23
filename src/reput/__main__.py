"""The ``reput`` command, and ``python -m reput``."""

import gc
import os
import signal
import sys
from types import FrameType

from reput import INTERRUPTED, interrupts

YOUNG_OBJECTS = 50_000
"""Objects that may be made before garbage is looked for. Python's own number, 700, makes it look
hundreds of times while packages load, and there is none."""


def _end(number: int, _frame: FrameType | None) -> None:
    interrupts.append(number)
    sys.exit(INTERRUPTED)


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback also while packages load."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    # numpy's library of linear algebra, which nothing here calls, starts a thread for each core
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from reput.cli import main as run_command  # noqa: PLC0415
    from reput.streaming.spark.withoutpandas import leave_out_pandas  # noqa: PLC0415

    leave_out_pandas()
    # what is loaded now stays: at its end Python looks through it for garbage three times. What a
    # command loads does not, since duckdb complains where its own is not found
    gc.freeze()
    run_command()


if __name__ == "__main__":
    main()
