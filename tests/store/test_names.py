"""Names of topics, groups and clients at their limits, as RocketMQ 5.3.3's ``TopicValidator`` and
the client's ``Validators`` have them."""

from __future__ import annotations

import string

import pytest

from reput.store.names import escaped, is_client_id, is_group, is_topic

LEGAL = {*string.ascii_letters, *string.digits, *"%|_-"}


def test_names_have_letters_digits_and_four_signs() -> None:
    """Nothing else of Unicode's first pages, and no end of line after a name."""
    for code in range(0x250):
        char = chr(code)
        assert is_group(char) is is_topic(char) is (char in LEGAL), code
        assert is_group(f"a{char}") is is_topic(f"a{char}") is (char in LEGAL), code
    for name in ("", "\u0660", "订单", "a.b", "a/b"):
        assert not is_group(name)
        assert not is_topic(name)


@pytest.mark.parametrize("char", ["a", "%", "9"])
def test_the_longest_names(char: str) -> None:
    """A topic's has 127, a group's 255; a client's id may have any printable letters."""
    assert is_topic(char * 127)
    assert not is_topic(char * 128)
    assert is_group(char * 255)
    assert not is_group(char * 256)
    assert is_client_id(char * 255)
    assert not is_client_id(char * 256)


def test_a_clients_id_stays_in_its_line() -> None:
    """It is an address and whatever an instance is called."""
    for name in ("10.0.0.1@1234#5", "订单 @ 1", " "):
        assert is_client_id(name), name
    for name in ("", "a\nb", "a\t", "a\x1b[31m", "\u2028", "a\0"):
        assert not is_client_id(name), name


def test_a_name_of_the_log_is_shown_whole_up_to_its_limit() -> None:
    """One that is longer ends in dots; an escape counts with all its letters."""
    assert escaped(b"x" * 255) == "x" * 255
    assert escaped(b"x" * 256) == "x" * 252 + "..."
    assert escaped(b"\n" * 127) == "\\n" * 127
    assert escaped(b"\n" * 128) == "\\n" * 126 + "..."
    assert escaped(b"\xff\n" + "订".encode()) == "\\xff\\n订"
