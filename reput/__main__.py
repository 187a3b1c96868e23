"""The ``reput`` command, and ``python -m reput``."""

import signal
import sys
from types import FrameType

from reput import INTERRUPTED, interrupts


def _end(number: int, _frame: FrameType | None) -> None:
    interrupts.append(number)
    sys.exit(INTERRUPTED)


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback also while packages load."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from reput.cli import main as run_command  # noqa: PLC0415
    from streaming.withoutpandas import leave_out_pandas  # noqa: PLC0415

    leave_out_pandas()
    run_command()


if __name__ == "__main__":
    main()
