"""Some twenty thousand executions of the targets of formats with every ``make test``: bytes that
began as something sound. ``make fuzz`` is guided by coverage, and takes millions."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import targets

EXECUTIONS = 2_500
FORMATS = sorted(targets.TARGETS.keys() - {"frame", "canary"})


def _changed(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                del data[at : at + rng.choice((1, 4, 100))]
            case 1:
                data[at:at] = rng.randbytes(rng.choice((1, 2, 9)))
            case 2:
                number = rng.choice((0, 1, -1, 1 << 30, 91))
                data[at : at + 4] = number.to_bytes(4, "big", signed=True)
            case 3:
                other = rng.choice(seeds)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_takes_any_bytes(name: str, seed: int) -> None:
    """A value or the one kind of error that its module states."""
    target, rng = targets.load(name), random.Random(seed)
    seeds = list(target.seeds())
    for _ in range(EXECUTIONS):
        data = _changed(rng, seeds)
        try:
            target.check(data)
        except Exception:
            print(f"data={data.hex()}")
            raise
