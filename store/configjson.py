"""JSON as fastjson writes and reads it, and the files in it that a broker keeps in ``config/``.

fastjson writes maps with integer keys without quotes (``{"topic@group":{0:17}}``). It reads any
names without quotes, texts in single quotes and a comma after the last member, and so does
``parse``, which reads what clients send as well; its comments are not taken. A broker copies
the old text to ``<name>.bak`` and then overwrites the file in place. A reader may therefore see a
partial file, which a running broker completes within milliseconds. After a crash it stays partial,
and the ``.bak`` is valid. A partial file never passes for a whole one, because a JSON object
without its end does not parse. Source: RocketMQ 5.3.3 ``ConfigManager``, ``MixAll.string2File``;
formats.md §1. Writing is not supported, nor are maps whose keys are objects (a client's
offsets.json).
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from reput.store import jsontext
from reput.store.errors import NotReadyError, StoreError
from reput.store.files import BACKUP_SUFFIX

TRIES = 10
"""Reads of a partial file before its backup is used."""
RETRY_SECONDS = 0.02
# strings are matched first, so that nothing inside one is taken for a key; one without an end is
# matched too, or each quote in it would be tried as a beginning, in quadratic time
_ODDITY = re.compile(
    r"""
    "(?:[^"\\]|\\.)*+"?
    | '(?P<text>(?:[^'\\]|\\.)*+)(?P<end>'?)
    | (?P<blank>(?<=[{,])\s*+)(?P<key>-?[0-9]++|[A-Za-z_$][A-Za-z0-9_$]*+)(?=\s*+:)
    | (?P<comma>,)(?=\s*+[}\]])
    """,
    re.DOTALL | re.VERBOSE,
)
_IN_SINGLE_QUOTES = re.compile(r"\\.|\"", re.DOTALL)


def parse(text: str) -> object:
    """Parse a document, with integer keys as strings; raises ValueError. Source: fastjson 1.2.83
    ``JSON.parseObject``, which RocketMQ 5.3.3 ``RemotingSerializable`` and ``ConfigManager`` use.
    """
    document: object
    try:
        document = jsontext.parse(text, strict=False)
    except ValueError:
        # most texts are plain JSON, and searching takes ten times as long as parsing
        document = jsontext.parse(_ODDITY.sub(_as_json, text), strict=False)
    return document


def _as_json(match: re.Match[str]) -> str:
    """Return what plain JSON has in the place of a match."""
    if match["key"]:
        return f'{match["blank"]}"{match["key"]}"'
    if match["comma"]:
        return ""
    if not match["end"]:
        return match[0]
    inner = _IN_SINGLE_QUOTES.sub(_in_double_quotes, match["text"])
    return f'"{inner}"'


def _in_double_quotes(match: re.Match[str]) -> str:
    return {'"': '\\"', "\\'": "'"}.get(match[0], match[0])


def read(path: Path) -> object:
    """Read a document, or its ``.bak`` if the file is missing or stays empty or damaged.

    Returns None if neither exists. Raises NotReadyError if the existing one is not whole, and
    StoreError if it cannot be read.
    """
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
    if isinstance(problem, OSError):
        raise StoreError(f"cannot read {path}: {problem.strerror}", path=path) from problem
    if problem is not None:
        raise NotReadyError(
            f"{path} is not whole: {problem}; a running broker writes it again, or else restore it "
            "from a copy",
            path=path,
        ) from problem
    return None


def _read_whole(path: Path) -> object:
    """Read the document once the file is whole; None if it stays empty.

    Raises ValueError if it stays partial.
    """
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
