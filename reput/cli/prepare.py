"""``reput prepare``: pay the first start's costs beforehand."""

from __future__ import annotations

import typer


def prepare() -> None:
    """Once for an installation, so that every run starts in half the time; takes half a minute.

    Compiles the kernels and archives Spark's classes, into this user's private cache.
    """
    from upkeep.prepare import prepare as fill_cache  # noqa: PLC0415

    archive = fill_cache()
    typer.echo(f"prepared: {archive or 'kernels only, this Java keeps no class archive'}")
