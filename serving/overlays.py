"""The overlay of a served store, opened, and served as a broker of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from reput.overlay.drain.drainjournal import check_not_drained
from reput.overlay.overlay import Overlay, overlay_root
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.serving.arrivals import NotifiedArrivals
from reput.serving.stores import ServedStore


def open_overlay(base: ServedStore, host: str, port: int) -> tuple[Overlay, ServedStore]:
    """Open the overlay of ``base``; ``host`` and ``port`` are where clients reach it. Raises
    OwnershipError, UsageError, StoreError; also where a broker has messages of it."""
    check_not_drained(overlay_root(base.output))
    arrivals = NotifiedArrivals(asyncio.get_running_loop())
    writer = Writer(
        RELEASE_5_3_3, (host, port), base.identity.cluster,
        max_delay_level=len(base.settings.message_delay_levels_ms),
    )  # fmt: skip
    overlay = Overlay(base.settings, base.output, writer, arrivals.end_moved)
    overlay.__enter__()
    identity = replace(base.identity, name=base.identity.overlay_name)
    return overlay, ServedStore(identity, overlay.settings, overlay.root, arrivals)
