"""Reads JSON that anybody may have written: a document, or ValueError, whatever the bytes are.

Python's parser recurses, and answers a few KiB of brackets with another kind of error.
"""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes, **options: Any) -> Any:
    """The document; ``options`` are those of ``json.loads``. Raises ValueError."""
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
