"""RocketMQ's remoting frame and both codecs of its header.

OFFSET  SIZE  FIELD (big-endian)
     0     4  L, the number of bytes that follow
     4     1  codec of the header: 0 JSON, 1 ROCKETMQ
     5     3  length H of the header
     8     H  header
   8+H     -  body, L - 4 - H bytes

A ROCKETMQ header: code i16, language i8, version i16, opaque i32, flag i32, remark (length i32,
bytes), ext fields (length i32 of all entries; an entry is key length i16, key, value length i32,
value). A length of 0 means that the text is absent. Source: RocketMQ 5.3.3 ``RemotingCommand``,
``RemotingSerializable``, ``RocketMQSerializable``.

Frames are hostile until they are parsed: any bytes give a frame or a FrameError.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache

from reput.serving.fastjson import as_enum, as_number, as_text, member
from reput.store import configjson

MAX_FRAME_BYTES = 16 << 20
"""Limit of a whole frame; RocketMQ's decoders close a connection with a larger one."""
MAX_HEADER_BYTES = 256 << 10
"""RocketMQ has no limit of its own here; headers have some hundred bytes."""
LENGTH_SIZE = 4
VERSION = 479
"""MQVersion of RocketMQ 5.3.3."""
LANGUAGE = "PYTHON"
_LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)  # fmt: skip
_OTHER = "OTHER"

_quoted = json.encoder.encode_basestring
"""A text in JSON, as ``json.dumps`` writes it with ``ensure_ascii=False``."""

_PREFIX = struct.Struct(">II")
_HEAD = struct.Struct(">hbhii")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")

_OPAQUE, _PULLED, _SIGNED = "opaque", '"queueOffset"', '"Signature"'
_NUMBERS = re.compile(
    '("opaque":|"queueId":"|"queueOffset":"|"commitOffset":")([0-9]{1,19})(?=[",}])'
)
_NAME = re.compile(r"\w+")
_MAX_REPEATED_LENGTH = 1 << 10
"""A longer header is decoded anew each time."""

RESPONSE = 1
ONE_WAY = 2
"""Bits of a flag."""


class FrameError(ValueError):
    """Bytes that are no frame; the text says why, in one line."""


class Codec(IntEnum):
    """How a header is encoded (``SerializeType``)."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Frame:
    """One request or response (``RemotingCommand``)."""

    code: int
    opaque: int = 0
    """The requester's number, which the response repeats."""
    flag: int = 0
    remark: str | None = None
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    language: str = LANGUAGE
    version: int = VERSION
    codec: Codec = Codec.JSON
    likeness: Likeness | None = None
    """The same object in all requests whose headers differ only in opaque, queueId, queueOffset and
    commitOffset; None if the header was not compared with others."""

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & ONE_WAY)

    def answer(
        self,
        code: int,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Frame:
        """The response to this request, in its codec."""
        return Frame(code, self.opaque, RESPONSE, remark, ext or {}, body, codec=self.codec)


@dataclass(slots=True)
class Encoded:
    """A frame whose head is encoded already."""

    head: bytes
    body: bytes | memoryview


def frame_length(data: bytes | bytearray | memoryview, start: int = 0) -> int | None:
    """Length of the whole frame at ``start``; None if that is not known yet.

    Raises FrameError for a length that no frame has.
    """
    if len(data) < start + LENGTH_SIZE:
        return None
    length = LENGTH_SIZE + int.from_bytes(data[start : start + LENGTH_SIZE], "big")
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
    if length < _PREFIX.size:
        raise FrameError(f"a frame of {length} bytes has no header")
    return length


def decode(data: bytes | bytearray | memoryview) -> Frame:
    """Decode one whole frame. Raises FrameError for anything else."""
    frame_and_end = take(data)
    if frame_and_end is None or frame_and_end[1] < len(data):
        raise FrameError(f"{len(data)} bytes are not one frame")
    return frame_and_end[0]


def take(
    data: bytes | bytearray | memoryview, start: int = 0, likely: Likeness | None = None
) -> tuple[Frame, int] | None:
    """Decode the frame at ``start``; return it and the position after it, None if it is not whole.

    A frame of the likeness ``likely`` takes less time. Raises FrameError.
    """
    length = frame_length(data, start)
    if length is None or start + length > len(data):
        return None
    body_at, end = start + _PREFIX.size, start + length
    mark = int.from_bytes(data[start + LENGTH_SIZE : body_at], "big")
    codec, header_length = mark >> 24, mark & 0xFFFFFF
    if header_length > min(end - body_at, MAX_HEADER_BYTES):
        raise FrameError(f"a header of {header_length} bytes in a frame of {length}")
    header = data[body_at : body_at + header_length]
    if codec == Codec.JSON:
        try:
            text = str(header, "utf-8")
        except UnicodeDecodeError as error:
            raise FrameError(f"the header is no JSON: {error}") from error
        frame = _decode_repeated(text, likely) or _decode_json(text)
    elif codec == Codec.ROCKETMQ:
        frame = _decode_binary(bytes(header))
    else:
        raise FrameError(f"the header's codec is {codec}, which is neither JSON nor ROCKETMQ")
    body_at += header_length
    if body_at < end:
        frame.body = bytes(data[body_at:end])
    return frame, end


def encode_head(frame: Frame) -> bytes:
    """Encode all of a frame that comes before its body. Raises FrameError if the frame would be
    longer than a client accepts."""
    header = _encode_json(frame) if frame.codec is Codec.JSON else _encode_binary(frame)
    length = _PREFIX.size - LENGTH_SIZE + len(header) + len(frame.body)
    if length + LENGTH_SIZE > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length + LENGTH_SIZE} bytes exceeds {MAX_FRAME_BYTES}")
    return _PREFIX.pack(length, frame.codec << 24 | len(header)) + header


def encode(frame: Frame) -> bytes:
    """Encode a whole frame. Raises FrameError if it would be longer than a client accepts."""
    return b"".join((encode_head(frame), frame.body))


class HeadTemplate:
    """Encodes answers in JSON that differ in opaque, some numbers and body only."""

    def __init__(self, answer: Frame) -> None:
        """``answer`` has ``%d`` as value of each ext field that differs, and no other ``%``."""
        text = _encode_json(replace(answer, opaque=0))
        self._text = text.replace(b'"opaque":0', b'"opaque":%d', 1)

    def encode(self, body: bytes | memoryview, *numbers: int) -> Encoded:
        """Return the answer with this body and these numbers, of which the first is its opaque."""
        header = self._text % numbers
        length = _PREFIX.size - LENGTH_SIZE + len(header) + len(body)
        return Encoded(_PREFIX.pack(length, len(header)) + header, body)


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """The common header of requests that differ only in some numbers, as the pulls of one client
    do."""

    first: Frame
    """One such request."""
    fields: tuple[str, ...]
    """The numbers' names, in their order in the header."""
    texts: tuple[str, ...]
    """The texts before, between and after the numbers; none is empty."""

    def numbers(self, header: str) -> dict[str, str] | None:
        """Return the numbers of such a header, None for any other header."""
        before, *others = self.texts
        if not header.startswith(before):
            return None
        # a compiled pattern would take 6 to 50 KB, for each of the likenesses that are remembered
        numbers, at = {}, len(before)
        for name, text in zip(self.fields, others, strict=True):
            end = header.find(text, at)
            number = header[at : max(end, at)]
            if not number.isdecimal() or not number.isascii():
                return None
            # a number of JSON has no zeros before it, and an opaque of nine digits has 32 bits
            if len(number) > (9 if name == _OPAQUE else 19) or (
                name == _OPAQUE and number[0] == "0"
            ):
                return None
            numbers[name] = number
            at = end + len(text)
        return numbers if at == len(header) else None


def _decode_repeated(header: str, likely: Likeness | None) -> Frame | None:
    """Decode the header of a pull with the parts of an earlier one like it; None for any other
    header."""
    numbers = likely.numbers(header) if likely else None
    if numbers is None:
        # no two signed headers are alike
        if len(header) > _MAX_REPEATED_LENGTH or _PULLED not in header or _SIGNED in header:
            return None
        parts = _NUMBERS.split(header)
        del parts[2::3]
        likely = _likeness(tuple(parts))
        numbers = likely.numbers(header) if likely else None
    if likely is None or numbers is None:
        return None
    first = likely.first
    ext = {**first.ext, **numbers}
    opaque = int(ext.pop(_OPAQUE))
    return Frame(
        first.code, opaque, first.flag, first.remark, ext, b"", first.language, first.version,
        Codec.JSON, likely,
    )  # fmt: skip


@lru_cache(1024)
def _likeness(parts: tuple[str, ...]) -> Likeness | None:
    """Return the likeness of headers with these texts around their numbers, None if they have none.
    Two such headers, with different numbers, are decoded: the numbers must come out as those
    fields, and all else must be equal."""
    fields = tuple(_NAME.findall(part)[0] for part in parts[1::2])
    if _OPAQUE not in fields or len({*fields}) < len(fields):
        return None
    texts = ["".join(pair) for pair in zip(parts[::2], [*parts[1::2], ""], strict=True)]
    frames = []
    for start in (1, 5):
        numbers = {name: str(start + at) for at, name in enumerate(fields)}
        pieces = zip(texts, [*numbers.values(), ""], strict=True)
        try:
            frame = _decode_json("".join("".join(piece) for piece in pieces))
        except FrameError:
            return None
        if _OPAQUE in frame.ext or str(frame.opaque) != numbers.pop(_OPAQUE):
            return None
        if not numbers.items() <= frame.ext.items():
            return None
        frame.opaque = 0
        frame.ext.update(dict.fromkeys(numbers, ""))
        frames.append(frame)
    if frames[0] != frames[1]:
        return None
    return Likeness(frames[0], fields, tuple(texts))


def _decode_json(header: str) -> Frame:
    try:
        # of halves of surrogate pairs it makes a text that cannot be encoded
        fields = configjson.parse(header)
    except ValueError as error:
        raise FrameError(f"the header is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise FrameError("the header is no JSON object")
    if "\\u" in header:
        require_characters(fields)
    remark, ext = member(fields, "remark"), member(fields, "extFields")
    if ext is not None and not isinstance(ext, dict):
        raise FrameError("the header's extFields are no object")
    try:
        language = as_enum(member(fields, "language"), _LANGUAGES)
    except ValueError as error:
        raise FrameError(f"the header's language: {error}") from error
    return Frame(
        _number(fields, "code"),
        _number(fields, "opaque"),
        _number(fields, "flag"),
        None if remark is None else as_text(remark),
        {key: as_text(value) for key, value in (ext or {}).items() if value is not None},
        language=language or _OTHER,
        version=_number(fields, "version"),
    )


def require_characters(value: object) -> None:
    """Raise FrameError for a text with half a surrogate pair, which cannot be encoded in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError("the JSON has an escape that is no character") from error


def _number(fields: dict[str, object], name: str) -> int:
    try:
        value = as_number(member(fields, name))
    except ValueError as error:
        raise FrameError(f"the header's {name}: {error}") from error
    if not -(1 << 31) <= value < 1 << 31:
        raise FrameError(f"the header's {name} is no 32-bit number")
    return value


def _encode_json(frame: Frame) -> bytes:
    # put together here, because json takes several times as long for so little
    ext = ",".join([f"{_quoted(key)}:{_quoted(value)}" for key, value in frame.ext.items()])
    fields = f',"extFields":{{{ext}}}' if ext else ""
    remark = f',"remark":{_quoted(frame.remark)}' if frame.remark is not None else ""
    text = (
        f'{{"code":{frame.code:d},"flag":{frame.flag:d},"language":{_quoted(frame.language)},'
        f'"opaque":{frame.opaque:d},"serializeTypeCurrentRPC":"JSON","version":{frame.version:d}'
        f"{fields}{remark}}}"
    )
    return text.encode()


class _Reader:
    """Takes the fields of a binary header one by one."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self._data = data
        self.position = position
        self.end = end

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        start, self.position = self.position, self.position + size
        if size < 0 or self.position > self.end:
            raise FrameError("a length in the header leads out of it")
        return self._data[start : self.position]

    def number(self, layout: struct.Struct) -> int:
        """The next number."""
        value: int = layout.unpack(self.read(layout.size))[0]
        return value

    def text(self, layout: struct.Struct) -> str:
        """A text after its length."""
        try:
            return self.read(self.number(layout)).decode()
        except UnicodeDecodeError as error:
            raise FrameError("a text in the header is not UTF-8") from error


def _decode_binary(header: bytes) -> Frame:
    if len(header) < _HEAD.size:
        raise FrameError(f"a header of {len(header)} bytes is too short")
    code, language, version, opaque, flag = _HEAD.unpack_from(header)
    rest = _Reader(header, _HEAD.size, len(header))
    remark = rest.text(_INT) or None
    ext_length = rest.number(_INT)
    entries = _Reader(header, rest.position, rest.position + ext_length)
    rest.read(ext_length)
    ext = {}
    while entries.position < entries.end:
        key = entries.text(_SHORT)
        ext[key] = entries.text(_INT)
    named = _LANGUAGES[language] if 0 <= language < len(_LANGUAGES) else _OTHER
    return Frame(
        code, opaque, flag, remark, ext, language=named, version=version, codec=Codec.ROCKETMQ
    )


def _encode_binary(frame: Frame) -> bytes:
    remark = (frame.remark or "").encode()
    entries = []
    for key, value in frame.ext.items():
        name, text = key.encode(), value.encode()
        entries += [_SHORT.pack(len(name)), name, _INT.pack(len(text)), text]
    block = b"".join(entries)
    language = _LANGUAGES.index(frame.language)
    return b"".join(
        (
            _HEAD.pack(frame.code, language, frame.version, frame.opaque, frame.flag),
            _INT.pack(len(remark)),
            remark,
            _INT.pack(len(block)),
            block,
        )
    )
