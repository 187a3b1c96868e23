"""``dlq`` where several groups have dead letters: each command is about those of one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call, json_lines, json_object
from tests.support.golden import log_records

GROUPS = ("billing", "shipping")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output whose overlay has three dead letters of each of two groups, in turn."""
    root = tmp_path / "overlay"
    with LogAppender(root, file_size=1 << 16) as appender:
        for number in range(3):
            for at, group in enumerate(GROUPS):
                key = f"UNIQ_KEY\x01{group}-{number}\x02RETRY_TOPIC\x01T\x02".encode()
                appender.append(
                    Record(
                        topic=f"%DLQ%{group}".encode(), body=f"{group} {number}".encode(),
                        properties=key, store_timestamp=1000 + 10 * number + at,
                    )
                )  # fmt: skip
    (root / "broker.conf").write_text("mappedFileSizeCommitLog=65536\n")
    return tmp_path


def sent_again(output: Path) -> list[tuple[str, str]]:
    """The topic and the body of each record of a retry topic."""
    records = log_records(output / "overlay")
    return [
        (one.topic.decode(), one.body.decode())
        for one in records
        if one.topic.startswith(b"%RETRY%")
    ]


def test_the_first_dead_letter_has_the_offset_0(output: Path, call: Call) -> None:
    """It is one that is given, as any other."""
    for group in GROUPS:
        (letter,) = json_lines(call("dlq", "show", output, group, 0))
        assert (letter["queue_offset"], letter["body"]) == (0, f"{group} 0")


def test_the_letters_of_one_group_are_listed(output: Path, call: Call) -> None:
    """By group, or of all; of several groups, too."""

    def listed(*words: object) -> list[tuple[str, int]]:
        letters = json_object(call("dlq", "list", output, *words, "--json"))["dead_letters"]
        return [(one["group"], one["queue_offset"]) for one in letters]

    every = [(group, number) for number in range(3) for group in GROUPS]
    assert listed() == every
    assert listed("--group", "shipping") == [one for one in every if one[0] == "shipping"]
    assert listed("--group", "shipping", "--group", "billing") == every
    assert listed("--group", "shipping", "-n", 1) == [("shipping", 2)]
    shown = call("dlq", "list", output, "-n", 1).stdout.splitlines()
    assert shown[-1] == "1 dead letter; 5 earlier ones are not shown, give --count"


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("--all",), (0, 1, 2)),
        (("--offset", 0), (0,)),
        (("--message-id", "billing-1"), (1,)),
        (("--message-id", "billing-0", "--offset", 2), (0, 2)),
        (("--message-id", "billing-2", "--offset", 2), (2,)),
    ],
)
def test_what_is_named_is_sent_again_to_its_group_alone(
    output: Path, call: Call, words: tuple[object, ...], numbers: tuple[int, ...]
) -> None:
    """The other group has letters with the same offsets."""
    resend = ("dlq", "resend", output, "billing", *words)
    planned = json_object(call(*resend, "--json"))
    assert (planned["offsets"], sent_again(output)) == ([*numbers], [])
    done = json_object(call(*resend, "--apply", "--json"))
    assert done == {**planned, "applied": True}
    assert sent_again(output) == [
        ("%RETRY%billing", f"billing {number}") for number in numbers
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["show", "resend"])
def test_a_letter_of_another_group_is_none(output: Path, call: Call, command: str) -> None:
    """It would go to consumers that never failed with it."""
    place = ("dlq", command, output, "billing", "--message-id", "shipping-1")
    apply = ("--apply",) if command == "resend" else ()
    assert_one_line(call(*place, *apply), 1, "no dead letter with id shipping-1: it has 3")
    assert sent_again(output) == []


def test_one_letter_is_shown(output: Path, call: Call) -> None:
    """The command refuses two, of which it would pass over one."""
    done = call("dlq", "show", output, "billing", 1, "--message-id", "billing-2")
    assert_one_line(done, 2, "give OFFSET or --message-id, one of them")


@pytest.fixture
def plain(output: Path) -> Path:
    """The same, with a last letter that has neither a key of a client nor an origin."""
    with LogAppender(output / "overlay", file_size=1 << 16) as appender:
        appender.append(Record(topic=b"%DLQ%billing", body=b"plain"))
    return output


@pytest.mark.parametrize("name", ["None", ""])
@pytest.mark.parametrize("command", ["show", "resend"])
def test_a_letter_without_an_id_has_none(plain: Path, call: Call, command: str, name: str) -> None:
    """A script that knows none gives such a word: it names no letter, and never all of those that
    have no origin."""
    place = ("dlq", command, plain, "billing", "--message-id", name)
    apply = ("--apply",) if command == "resend" else ()
    assert_one_line(call(*place, *apply), 1, f"no dead letter with id {name}".rstrip())
    assert sent_again(plain) == []
