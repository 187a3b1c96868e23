"""``reput prepare``: does beforehand what the first start would do."""

from __future__ import annotations

import logging

from reput.cli.printer import Result, printed
from reput.cli.render import print_note


@printed
def prepare() -> Result:
    """Halve the start time of every later run; takes half a minute, once per installation.

    Compiles the kernels and archives Spark's classes in this user's private cache.
    """
    from reput.upkeep.prepare import prepare as fill_cache  # noqa: PLC0415

    print_note("compiling kernels and archiving Spark's classes; this takes half a minute")
    # the log of a run over a made-up store would only surprise
    logging.getLogger("reput").setLevel(logging.WARNING)
    archive = fill_cache()
    line = f"prepared: {archive or 'kernels only, this Java keeps no class archive'}"
    return Result({"class_archive": archive and str(archive)}, [line])
