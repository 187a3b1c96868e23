"""Frames: both codecs, and any other bytes that a connection may carry."""

from __future__ import annotations

import json
import random
import re
import struct
import tracemalloc
from collections.abc import Iterator

import pytest

from reput.serving.frame import (
    LENGTH_SIZE,
    MAX_FRAME_BYTES,
    Codec,
    Frame,
    FrameError,
    HeadTemplate,
    decode,
    encode,
    frame_length,
    take,
)

FEW, MANY = 5_000, 100_000


def texts(rng: random.Random, most: int) -> str:
    """A text of up to ``most`` characters of one to four bytes."""
    return "".join(rng.choice('aZ09_%|"\\\n\té中😀') for _ in range(rng.randrange(most + 1)))


def any_frame(rng: random.Random) -> Frame:
    """A frame of any content that both codecs can hold."""
    return Frame(
        rng.randrange(-(1 << 15), 1 << 15),
        rng.randrange(-(1 << 31), 1 << 31),
        rng.randrange(4),
        texts(rng, 20) or None,
        {texts(rng, 9): texts(rng, 30) for _ in range(rng.randrange(8))},
        rng.randbytes(rng.randrange(200)),
        rng.choice(("JAVA", "PYTHON", "NODE_JS")),
        rng.randrange(1 << 15),
        rng.choice(list(Codec)),
    )


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A frame with some bytes changed, cut or added, mostly with a right length."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        position = rng.randrange(len(found))
        match rng.randrange(4):
            case 0:
                found[position] = rng.randrange(256)
            case 1:
                del found[position : position + rng.randrange(4)]
            case 2:
                found[position:position] = rng.randbytes(rng.randrange(4))
            case 3:
                extreme = rng.choice((0, 1, -1, 1 << 15, (1 << 31) - 1, -(1 << 31)))
                found[position : position + 4] = struct.pack(">i", extreme)
        if not found:
            return b""
    if rng.randrange(8):
        found[:4] = struct.pack(">I", max(len(found) - 4, 0))
    return bytes(found)


def hostile(rng: random.Random, count: int) -> Iterator[bytes]:
    """Mutated frames, and random bytes after a right length."""
    for number in range(count):
        if number % 4:
            yield mutated(rng, encode(any_frame(rng)))
        else:
            size = rng.randrange(4, 300)
            mark = struct.pack(">I", rng.randrange(2) << 24 | rng.randrange(size))
            yield struct.pack(">I", size) + mark + rng.randbytes(size - 4)


def test_a_frame_survives_both_codecs(seed: int) -> None:
    """Every field is decoded as it was encoded."""
    rng = random.Random(seed)
    for _ in range(2000):
        frame = any_frame(rng)
        data = encode(frame)
        assert frame_length(data[:4]) == len(data)
        assert decode(data) == frame


PULLS = (
    b'{"code":11,"extFields":{"queueId":"3","queueOffset":"5","topic":"T\\u00e4","commitOffset":"0",'
    b'"subscription":"*"},"flag":0,"language":"JAVA","opaque":7,"version":479}',
    b'{"opaque":1,"code":361,"version":407,"extFields":{"queueOffset":"0000000000000000012"}}',
)
"""Headers of pulls, whose numbers the test replaces."""
TRICKS = (
    b'"opaque":8,', b'"queueOffset":"9",', b'"x":{"opaque":4},', b'"op\\u0061que":6,',
    b'"queueOffset":8,', b'"commitOffset":"3",', b'"\\"opaque":5,', b"\0",
    b'"y":[1,"queueOffset":"2"],', b'"remark":"\\"opaque\\":3,",',
)  # fmt: skip
"""A header may hold these besides: numbers that are not those of the request."""
NUMBERS = (
    b"0",
    b"00",
    b"1",
    b"-1",
    b"1.5",
    b"2e3",
    b"4711",
    b"2147483647",
    b"2147483648",
    b"9" * 20,
)


def test_repeated_headers_are_what_they_say(seed: int) -> None:
    """A header like the one before is decoded like any other, as json decodes it, whatever else it
    contains."""
    rng, likenesses, likely = random.Random(seed), set[object](), None
    for _ in range(4000):
        header = rng.choice(PULLS)
        if rng.randrange(2):
            at = rng.choice([found.start() for found in re.finditer(rb'(?<=[{,])"', header)])
            header = header[:at] + rng.choice(TRICKS) + header[at:]
        header = re.sub(rb"(?<=[:\"])[0-9]+(?=[,}\"])", lambda _: rng.choice(NUMBERS), header)
        data = json_frame(header)
        try:
            taken = take(b"\0" + data + b"\0", 1, likely)
        except FrameError:
            taken = None
        found = taken[0] if taken else None
        assert (found and plainly(found)) == expected(header), header
        if found is not None and found.likeness is not None:
            likely = found.likeness
            likenesses.add(likely)
            assert take(data, 0, likely) == (found, len(data))
    assert len(likenesses) > 1


def test_a_template_writes_what_json_reads(seed: int) -> None:
    """The numbers of each answer, its body, and all else as in the answer it was made of."""
    rng = random.Random(seed)
    ext = {"constant": "0", "first": "%d", "second": "%d"}
    template = HeadTemplate(Frame(0, 7, 1, "FOUND", ext))
    for _ in range(100):
        opaque, *numbers = (rng.randrange(1 << 31) for _ in range(3))
        body = rng.randbytes(rng.randrange(100))
        answer = template.encode(body, opaque, *numbers)
        found = decode(answer.head + answer.body)
        first, second = map(str, numbers)
        ext = {"constant": "0", "first": first, "second": second}
        assert found == Frame(0, opaque, 1, "FOUND", ext, body)


def test_headers_that_are_remembered_take_little_memory() -> None:
    """Clients choose the headers: 1,024 of the greatest length, and their parts, are kept."""
    tracemalloc.start()
    try:
        for number in range(2000):
            topic = b"%d%s" % (1000 + number, b"T" * 800)
            found = take(json_frame(PULLS[0].replace(b"T\\u00e4", topic)))
            assert found is not None
            assert found[0].likeness is not None
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()


def plainly(frame: Frame) -> tuple[object, ...]:
    """The parts of a frame that a header gives."""
    return frame.code, frame.opaque, frame.flag, frame.version, frame.remark, frame.ext


def expected(header: bytes) -> tuple[object, ...] | None:
    """The same fields, decoded by json and Java's casts alone; None for a header that is not
    valid."""
    try:
        fields = json.loads(header)
    except ValueError:
        return None
    numbers = [fields.get(name, 0) for name in ("code", "opaque", "flag", "version")]
    if not all(-(1 << 31) <= n < 1 << 31 for n in numbers):
        return None
    code, opaque, flag, version = map(int, numbers)
    ext = {
        key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for key, value in fields["extFields"].items()
    }
    return code, opaque, flag, version, fields.get("remark"), ext


def check_hostile(seed: int, count: int) -> None:
    """Check that every input gives a frame that can be encoded again, or an error in one line."""
    rng, frames, errors = random.Random(seed), 0, 0
    for data in hostile(rng, count):
        try:
            found = decode(data)
        except FrameError as error:
            errors += 1
            assert "\n" not in str(error)
            continue
        frames += 1
        assert decode(encode(found)) == found
    assert frames > count // 50
    assert errors > count // 50


def test_any_bytes_give_a_frame_or_an_error(seed: int) -> None:
    """Some thousand inputs; make test-slow tries many more."""
    check_hostile(seed, FEW)


@pytest.mark.slow
def test_any_bytes_give_a_frame_or_an_error_many(seed: int) -> None:
    """A hundred thousand inputs."""
    check_hostile(seed, MANY)


def json_frame(header: bytes) -> bytes:
    return struct.pack(">II", len(header) + 4, len(header)) + header


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">I", MAX_FRAME_BYTES), "exceeds"),
        (struct.pack(">I", 3) + b"abc", "has no header"),
        (struct.pack(">II", 4, 9), "header of 9 bytes"),
        (struct.pack(">II", 5, 2 << 24 | 1) + b"x", "codec is 2"),
        (json_frame(b"[" * 100_000), "no JSON"),
        (json_frame(b'{"code":' + b"9" * 5000 + b"}"), "no JSON"),
        (json_frame(b'{"code":4294967296}'), "code is no 32-bit number"),
        (json_frame(b'{"code":"x"}'), "code: 'x' is no long"),
        (json_frame(b'{"language":99}'), "language: 99 is no ordinal"),
        (json_frame(b'{"extFields":["a"]}'), "no object"),
        (json_frame(b'{"extFields":{"a":"\\ud800"}}'), "no character"),
        (json_frame(b'{"remark":"\xff"}'), "no JSON"),
        (json_frame(b'{"remark":"\xed\xa0\x80"}'), "no JSON"),
        (json_frame('{"code":1}'.encode("utf-16")), "no JSON"),
        (json_frame(b"7"), "no JSON object"),
        (struct.pack(">II", 7, 1 << 24 | 3) + b"abc", "too short"),
        (
            struct.pack(">IIhbhiiii", 4 + 21, 1 << 24 | 21, 1, 0, 1, 1, 0, 0, 1 << 30),
            "leads out of it",
        ),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, words: str) -> None:
    """The error names the fault, and no memory is allocated for a wrong length."""
    with pytest.raises(FrameError, match=words):
        decode(data)


def test_what_clients_send_besides_texts() -> None:
    """Ext fields may be numbers or nulls; keys and languages may be unknown, as for fastjson."""
    header = {
        "code": 11, "opaque": 7, "flag": 2, "language": "KLINGON", "version": 479, "more": [1],
        "remark": None, "extFields": {"queueId": 3, "block": True, "absent": None, "ns": "x"},
    }  # fmt: skip
    found = decode(json_frame(json.dumps(header).encode()))
    assert (found.code, found.opaque, found.is_one_way, found.is_response) == (11, 7, True, False)
    assert found.ext == {"queueId": "3", "block": "true", "ns": "x"}


def test_a_frame_that_no_client_takes_is_not_made() -> None:
    """A client's decoder takes 16 MiB with the length field, and closes the connection at more."""
    longest = MAX_FRAME_BYTES - len(encode(Frame(0)))
    made = encode(Frame(0, body=bytes(longest)))
    assert len(made) == 16 << 20
    assert decode(made) is not None
    for more in (1, LENGTH_SIZE, MAX_FRAME_BYTES):
        with pytest.raises(FrameError, match="exceeds"):
            encode(Frame(0, body=bytes(longest + more)))
