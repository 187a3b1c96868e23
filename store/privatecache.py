"""Where compiled code is kept between runs: a directory in which only this user can write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def private_directory(name: str) -> Path:
    """``reput/name`` in the user's cache, made where it is missing. Raises OSError.

    What lies here is executed, hence the strict owner and mode.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    for parent in (Path(home), Path(tempfile.gettempdir()) / f"reput-{os.getuid()}"):
        directory = parent / "reput" / name
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError:
            continue
        if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
            return directory
    raise OSError(f"no private directory for {name}; set XDG_CACHE_HOME to one")
