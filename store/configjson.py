"""The JSON that a broker keeps below ``config/``, which is not quite JSON.

fastjson writes maps with integer keys without quotes (``{"topic@group":{0:17}}``). A broker
overwrites these files in place after it copied the old text to ``<name>.bak``, so a crash may leave
half a file, and the ``.bak`` is then the truth. Source: RocketMQ 5.3.3 ``ConfigManager``;
format.md §1. Not done here: writing, and maps whose keys are objects (a client's offsets.json).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from store.errors import UsageError

BACKUP_SUFFIX = ".bak"
# strings are matched first, so that nothing inside of one is taken for a key
_INTEGER_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL)


def parse(text: str) -> object:
    """The document, integer keys as strings; raises ValueError."""
    quoted = _INTEGER_KEY.sub(
        lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], text
    )
    document: object = json.loads(quoted, strict=False)
    return document


def read(path: Path) -> object:
    """The document of a file, or of its ``.bak`` where it is missing, empty or damaged; None where
    neither exists. Raises UsageError where what is there cannot be read."""
    problem: Exception | None = None
    for candidate in (path, path.with_name(path.name + BACKUP_SUFFIX)):
        try:
            text = candidate.read_text("utf-8")
            if text:
                return parse(text)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problem = problem or error
    if problem is not None:
        raise UsageError(f"cannot read {path}: {problem}")
    return None
