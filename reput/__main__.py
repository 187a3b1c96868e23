"""``python -m reput``."""

from reput.cli import main

main()
