"""Inner batches: messages that a client put into the body of one message of a batch queue.

The inflated body is a sequence of messages with consecutive queue offsets, from the batch's on.

OFFSET  SIZE  FIELD
     0    12  totalSize, magic and bodyCRC; no reader looks at them
    12     4  flag
    16     4  bodyLength
    20     n  body
           2  propertiesLength
           n  properties
Source: RocketMQ 5.3.3 ``MessageDecoder``, ``PullAPIWrapper.processPullResult``; formats.md §2.
"""

from __future__ import annotations

import struct

from reput.store.log.sysflag import SysFlag

_HEAD = struct.Struct(">12xii")
_PROPERTIES_LENGTH = struct.Struct(">h")
_WRAPPED = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
_OF_THE_BATCH = _WRAPPED | SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK


def is_inner_batch(sys_flag: int) -> bool:
    """Whether a message's body is an inner batch."""
    return sys_flag & _WRAPPED == _WRAPPED


def inner_sys_flag(sys_flag: int) -> int:
    """sysFlag of a batch's messages, given the batch's: their bodies are plain."""
    return sys_flag & ~_OF_THE_BATCH


def inner_messages(data: bytes) -> list[tuple[int, bytes, bytes]] | None:
    """Return (flag, body, properties) of each message; None if there are none or if lengths do not
    add up."""
    messages = []
    position = 0
    while position < len(data):
        if position + _HEAD.size > len(data):
            return None
        flag, length = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        body = data[position : position + length]
        position += length
        if length < 0 or position + _PROPERTIES_LENGTH.size > len(data):
            return None
        (length,) = _PROPERTIES_LENGTH.unpack_from(data, position)
        position += _PROPERTIES_LENGTH.size
        if length < 0 or position + length > len(data):
            return None
        messages.append((flag, body, data[position : position + length]))
        position += length
    return messages or None
