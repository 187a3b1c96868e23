"""Three parsers of the log's bytes say the same: the plain decoder, the kernels, and RocketMQ's own
``CommitLog.checkMessageAndReturnSize``.

Axes: sound, damaged and random logs, at the starts of records and anywhere, body CRCs checked or
not. Ours are stricter where ``store.log.record`` says so; each such answer is asked again for the
bytes that differ in that point alone. Not compared: BAD_FILE_END, where RocketMQ is never asked.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reput.store.log import java, kernels, record
from reput.store.log.record import Record
from reput.store.log.status import Outcome, Status
from tests.interop import rocketmq
from tests.interop.rocketmq import require_maven
from tests.support.damage import damage
from tests.support.small_logs import Damage, none, random_log, randomize
from tests.support.wire import PlainLog

LOGS = 20
PLACES = 15
MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
REFUSED = "-1 false"
PHYSICAL_OFFSET = slice(28, 36)
EVER = (1 << 63) - 1


@dataclass(frozen=True)
class Question:
    """The bytes of a log's file from some place on."""

    data: bytes
    offset: int
    verify_crc: bool

    @property
    def line(self) -> str:
        """In the harness's words."""
        return f"{str(self.verify_crc).lower()} {self.data.hex()}"

    def plainly(self, data: bytes, room: int = 0) -> Record | Status:
        """The plain decoder's answer; the file may have more ``room`` at its end."""
        end = self.offset + len(data) + room
        found = record.decode(data, self.offset, end, verify_crc=self.verify_crc)
        return found.status if isinstance(found, Outcome) else found

    def by_kernel(self) -> Status:
        """The kernels' answer, which is of the lengths alone."""
        buffer = np.frombuffer(self.data, np.uint8)
        end = self.offset + len(self.data)
        status, *_ = kernels.hop_records(
            buffer, len(buffer), self.offset, end, 0, EVER, 1, EVER
        )  # fmt: skip
        return Status(status)


def questions(rng: random.Random, log: PlainLog) -> list[Question]:
    end = log.start + len(log.image)
    places = {start for start, _ in log.spans}
    places |= {log.start + max(found.start() - 4, 0) for found in MAGIC.finditer(log.image)}
    places |= {rng.randrange(log.start, end) for _ in range(PLACES)}
    found = []
    for at in sorted(places):
        file_end = at + log.file_size - (at - log.start) % log.file_size
        if file_end - at >= record.END_FILE_MIN_BLANK_LENGTH:
            found.append(Question(log.bytes_at((at, file_end)), at, rng.random() < 0.5))
    return found


def answer_for(found: Record, offset: int) -> str:
    """RocketMQ's words for a message."""
    fields = (
        found.total_size, "true", java.hash_code(found.topic), found.queue_id, found.queue_offset,
        offset, record.tags_code(found), found.store_timestamp,
    )  # fmt: skip
    return " ".join(map(str, fields))


def check(asked: Question, theirs: str) -> str:
    """Compare the three answers; what ours was."""
    plain = asked.plainly(asked.data)
    status = Status.OK if isinstance(plain, Record) else plain
    content = (Status.BAD_BODY_CRC, Status.BAD_PROPERTY)
    assert asked.by_kernel() is (Status.OK if status in content else status), asked
    stated = int.from_bytes(asked.data[PHYSICAL_OFFSET], "big", signed=True)
    if status in (Status.BAD_PHYSICAL_OFFSET, Status.BAD_SIZE):
        # RocketMQ asks neither for the position nor whether a BLANK fits after the record
        data = bytearray(asked.data)
        data[PHYSICAL_OFFSET] = asked.offset.to_bytes(8, "big", signed=True)
        plain = asked.plainly(bytes(data), record.END_FILE_MIN_BLANK_LENGTH)
    if isinstance(plain, Record):
        assert theirs == answer_for(plain, stated), asked
    elif plain in (Status.BLANK, Status.BAD_BLANK):
        # RocketMQ asks only that the rest of the file is not shorter than the BLANK says
        fits = int.from_bytes(asked.data[:4], "big", signed=True) <= len(asked.data)
        assert theirs == ("0 true" if fits else REFUSED), asked
    elif plain is Status.BAD_LENGTH and " true " in theirs:
        # RocketMQ takes a negative length of the body or the properties for none
        assert has_negative_length(asked.data), asked
        return "negative length"
    elif plain in (Status.BAD_LENGTH, Status.BAD_SIZE, Status.BAD_PHYSICAL_OFFSET):
        assert theirs.endswith(" false"), asked
    else:
        assert theirs == REFUSED, asked
    return status.name


def has_negative_length(data: bytes) -> bool:
    sys_flag = int.from_bytes(data[36:40], "big")
    at = 68 + (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8)
    body_length = int.from_bytes(data[at : at + 4], "big", signed=True)
    at += 4 + max(body_length, 0)
    size = 2 if data[4:8] == record.MESSAGE_MAGIC_V2.to_bytes(4, "big") else 1
    at += size + int.from_bytes(data[at : at + size], "big", signed=True)
    return body_length < 0 or int.from_bytes(data[at : at + 2], "big", signed=True) < 0


@pytest.mark.parametrize("harm", [none, damage, randomize], ids=lambda harm: harm.__name__)
def test_three_parsers_say_the_same(tmp_path: Path, seed: int, harm: Damage) -> None:
    """All three give the same answer to sound, damaged and random bytes."""
    require_maven()
    rng = random.Random(seed)
    asked: list[Question] = []
    for _ in range(LOGS):
        log = random_log(rng)
        harm(rng, log)
        asked += questions(rng, log)
    answers = rocketmq.ask_records(tmp_path, [one.line for one in asked])
    found = Counter(check(*pair) for pair in zip(asked, answers, strict=True))
    print(dict(found))
    assert len(found) > 3
    assert harm is randomize or found[Status.OK.name] > LOGS
