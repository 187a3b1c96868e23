"""The JSON that a broker keeps below ``config/``, which is not quite JSON.

fastjson writes maps with integer keys without quotes (``{"topic@group":{0:17}}``). A broker
overwrites these files in place after it copied the old text to ``<name>.bak``. A reader may meet
half a file, which a running broker completes within milliseconds; after a crash it stays half, and
the ``.bak`` is then the truth. No part of a JSON object that lacks its end is one, so that half a
file never passes for a whole one. Source: RocketMQ 5.3.3 ``ConfigManager``, ``MixAll.string2File``;
formats.md §1. Not done here: writing, and maps whose keys are objects (a client's offsets.json).
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from store.errors import UsageError

BACKUP_SUFFIX = ".bak"
TRIES = 10
"""Of a file that is not whole, before its backup is taken."""
RETRY_SECONDS = 0.02
# strings are matched first, so that nothing inside of one is taken for a key
_INTEGER_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL)


def parse(text: str) -> object:
    """The document, integer keys as strings; raises ValueError."""
    document: object
    try:
        document = json.loads(text, strict=False)
    except ValueError:
        # most files have no such keys, and looking for them takes ten times as long as parsing
        quoted = _INTEGER_KEY.sub(
            lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], text
        )
        document = json.loads(quoted, strict=False)
    return document


def read(path: Path) -> object:
    """The document of a file, or of its ``.bak`` where it is missing or stays empty or damaged;
    None where neither exists. Raises UsageError where what is there cannot be read."""
    problem: Exception | None = None
    for candidate in (path, path.with_name(path.name + BACKUP_SUFFIX)):
        try:
            document = _read_whole(candidate)
            if document is not None:
                return document
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problem = problem or error
    if problem is not None:
        raise UsageError(f"cannot read {path}: {problem}")
    return None


def _read_whole(path: Path) -> object:
    """The document once the file is whole; None where it stays empty. Raises ValueError where it
    does not become whole."""
    problem: ValueError | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(RETRY_SECONDS)
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            data = file.read()
            after = os.fstat(file.fileno())
        try:
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise ValueError("it is being written to")
            if data:
                return parse(data.decode("utf-8"))
            problem = None
        except ValueError as error:
            problem = error
    if problem is not None:
        raise problem
    return None
