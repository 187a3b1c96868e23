"""The ``reput`` command, and ``python -m reput``."""

import sys

from reput import INTERRUPTED


def main() -> None:
    """Ctrl-C while the packages still load is no reason for a traceback."""
    try:
        from reput.cli import main as run_command  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run_command()


if __name__ == "__main__":
    main()
