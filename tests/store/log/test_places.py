"""Places in damaged logs, held against the walk that decodes every record."""

from __future__ import annotations

import random
from pathlib import Path

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, records
from reput.store.log.logtail import LogTail
from reput.store.log.places import last_record_before, pass_over
from reput.store.log.status import Status
from tests.support.damage import damage
from tests.torture.logrot import random_log

LOGS, PLACES = 20, 12


def test_a_passage_is_what_the_plain_walk_finds(tmp_path: Path, seed: int) -> None:
    """Up to any byte: the records and damaged ranges that end there or before, and the start of
    what contains the byte. A record whose properties cannot be read counts as one."""
    rng = random.Random(seed)
    damaged = 0
    for number in range(LOGS):
        plain = random_log(rng)
        if number % 2:
            damage(rng, plain)
        log = CommitLog([plain.write(tmp_path / str(number))], plain.file_size)
        end = LogTail(log).settled(plain.start)
        found = list(records(log, plain.start, end, fail_on_data_loss=False))
        spans = [
            (one.start, one.end) if isinstance(one, BadRange)
            else (one.physical_offset, one.physical_offset + one.total_size)
            for one in found
        ]  # fmt: skip
        for _ in range(PLACES):
            place = rng.randrange(plain.start, end + 1)
            passed = pass_over(log, plain.start, place)
            before = [one for one, span in zip(found, spans, strict=True) if span[1] <= passed.end]
            bad = [
                one
                for one in before
                if isinstance(one, BadRange) and one.status is not Status.BAD_PROPERTY
            ]
            starts = [
                one.start if isinstance(one, BadRange) else one.physical_offset
                for one in before
                if one not in bad
            ]
            if any(start < place < stop for start, stop in spans):
                assert passed.end == max(start for start, _ in spans if start <= place)
            assert passed.messages == len(starts), (number, place)
            assert list(passed.bad) == bad, (number, place)
            assert passed.first_record_offset == min(starts, default=-1)
            assert passed.last_record_offset == max(starts, default=-1)
            assert last_record_before(log, passed.end) == max(starts, default=-1)
            damaged += len(bad)
        log.close()
    assert damaged
