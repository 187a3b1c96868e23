"""Events of traces that no client of RocketMQ writes: whoever may send a message may send them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.readers.messagestore import MessageStore
from reput.readers.trace import TYPES, decode, events_of
from tests.readers.stores import SmallStore

FIELDS = ["Pub", "5", "r", "g", "T", "id", "tag", "k", "host", "7", "3", "0", "offset id", "true"]
TIME, LENGTH, COST, TYPE = 1, 9, 10, 11


@pytest.mark.parametrize("place", [TIME, LENGTH, COST])
@pytest.mark.parametrize(
    ("text", "value"),
    [("-5", -5), ("9223372036854775807", (1 << 63) - 1), ("--5", None), ("-", None), ("", None),
     ("5-", None), ("1_0", None), (" 5", None), ("9" * 5000, None)],
)  # fmt: skip
def test_what_is_no_number_is_none(place: int, text: str, value: int | None) -> None:
    """The other fields of the event are as they were."""
    parts = [*FIELDS]
    parts[place] = text
    (whole,), (found,) = decode("\x01".join(FIELDS)), decode("\x01".join(parts))
    name = {TIME: "time", LENGTH: "body_length", COST: "cost_ms"}[place]
    assert found == {**whole, name: value}


@pytest.mark.parametrize("text", ["-1", str(len(TYPES)), "9" * 5000, "x", ""])
def test_a_type_that_is_none_stays_as_it_is(text: str) -> None:
    parts = [*FIELDS]
    parts[TYPE] = text
    (found,) = decode("\x01".join(parts))
    assert found["message_type"] == text


def test_the_first_clients_wrote_no_offset_id() -> None:
    """``TraceDataEncoder`` tells them by 13 fields: the last one is the success, for later clients
    the one after the offset id."""
    places = dict(enumerate(("time", "region_id", "group", "topic"), 1))
    for parts, offset_id in ((FIELDS, "offset id"), ([*FIELDS[:12], FIELDS[13]], None)):
        for flag in ("true", "false"):
            (found,) = decode("\x01".join([*parts[:-1], flag]))
            assert (found["success"], found.get("offset_message_id")) == (flag == "true", offset_id)
            assert found["message_type"] == "normal"
            assert {place: str(found[name]) for place, name in places.items()} == {
                place: parts[place] for place in places
            }


@pytest.mark.parametrize("text", ["", "null"])
def test_an_unknown_text_is_none(text: str) -> None:
    """A Java client writes its null; a text in which the word occurs is one."""
    names = {2: "region_id", 5: "message_id", 6: "tags", 7: "keys", 8: "store_host"}
    for place, name in names.items():
        (found,) = decode("\x01".join([*FIELDS[:place], text, *FIELDS[place + 1 :]]))
        assert (found[name], found["topic"]) == (None, "T")
        (found,) = decode("\x01".join([*FIELDS[:place], "a null", *FIELDS[place + 1 :]]))
        assert found[name] == "a null"


def test_events_of_later_clients_are_kept() -> None:
    """Their fields are texts, since nobody here knows their names; the events around them stay."""
    body = "\x02".join(["\x01".join(FIELDS), "New\x015\x01\x01x", "Other", ""])
    first, *others = decode(body)
    assert first["kind"] == "Pub"
    assert others == [{"kind": "New", "fields": ["5", "", "x"]}, {"kind": "Other", "fields": []}]


@pytest.mark.parametrize("sys_flag", [0, 0x301])
def test_events_are_in_the_order_of_time(tmp_path: Path, sys_flag: int) -> None:
    """Each end of a consumption after its own begin, and at its own time if it has one; also in
    bodies that are no compressed ones, although their flag says so."""
    sent = "\x01".join([*FIELDS[:5], "ID", *FIELDS[6:12], "OFFSET", "true"])
    bodies = [
        "SubAfter\x01r2\x01ID\x011\x01true\x01\x010\x01\x01c2",  # the time is unknown
        "SubAfter\x01r1\x01ID\x011\x01true\x01\x010\x01900\x01c1",
        "SubAfter\x01r0\x01ID\x011\x01true\x01\x010\x01\x01c0",  # its begin, too
        "SubBefore\x01400\x01r\x01g2\x01r2\x01ID\x010\x01\x01h",
        "SubBefore\x01100\x01r\x01g1\x01r1\x01ID\x010\x01\x01h",
        sent,
    ]
    small = SmallStore(tmp_path)
    for body in bodies:
        small.append(body=f"{body}\x02".encode(), sys_flag=sys_flag)
    with MessageStore(small.write()) as store:
        messages = store.queue("Topic", 0).get_message(0).messages
        found = events_of(messages, "ID")
        assert [(one["kind"], one.get("request_id")) for one in found] == [
            ("SubAfter", "r0"), ("Pub", None), ("SubBefore", "r1"), ("SubBefore", "r2"),
            ("SubAfter", "r2"), ("SubAfter", "r1"),
        ]  # fmt: skip
        for other, count in (("OFFSET", 1), ("k", 1), ("OFFSE", 0), ("T", 0), ("", 0), ("r1", 0)):
            assert len(events_of(messages, other)) == count
