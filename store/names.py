"""The names that topics, consumer groups and clients can have.

Source: RocketMQ 5.3.3 ``TopicValidator``, and the client's ``Validators``.
"""

from __future__ import annotations

import re

MAX_GROUP_LENGTH = 255
MAX_TOPIC_LENGTH = 127
MAX_CLIENT_ID_LENGTH = 255
"""RocketMQ has no limit of its own; an id is an address and an instance name."""
_MAX_SHOWN = 255
ALPHABET = re.compile(r"[%|a-zA-Z0-9_-]+\Z", re.ASCII)


def is_group(name: str) -> bool:
    """Whether a consumer group can have this name."""
    return len(name) <= MAX_GROUP_LENGTH and ALPHABET.match(name) is not None


def is_topic(name: str) -> bool:
    """Whether a client may name a topic so."""
    return len(name) <= MAX_TOPIC_LENGTH and ALPHABET.match(name) is not None


def is_client_id(name: str) -> bool:
    """Whether a client may call itself so; what it calls itself is written to logs, in one line."""
    return 0 < len(name) <= MAX_CLIENT_ID_LENGTH and name.isprintable()


def escaped(topic: bytes) -> str:
    """A name from the log as other outputs have it, with escapes for what is not printable or not
    UTF-8; longer ones than any topic with a queue are cut."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in topic.decode("utf-8", "backslashreplace")
    )
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
