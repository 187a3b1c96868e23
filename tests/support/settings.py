"""A store's settings for what does not ask them."""

from __future__ import annotations

from pathlib import Path

from reput.store.config import StoreSettings

ANY_SETTINGS = StoreSettings(Path(), ())
