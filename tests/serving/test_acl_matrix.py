"""Every request of every user that RocketMQ's last broker with ACL 1.0 was asked, and signatures.

Ours may refuse more than RocketMQ 5.3.2 does, for the reasons in docs/serving.md, and never less.
"""

from __future__ import annotations

import asyncio
import csv
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from reput.serving.acl.guard import AccessRules, Guard
from reput.serving.acl.needs import TABLE
from reput.serving.acl.signature import SIGNATURE, is_signed, sign
from reput.serving.broker import Broker
from reput.serving.codes import RequestCode
from reput.serving.config import FirstPosition
from reput.serving.frame import Frame
from reput.serving.holds import Holds
from reput.serving.namesrv import NameServer
from reput.serving.stores import BrokerIdentity, ServedStore
from reput.store.config import read_store_settings
from tests.serving.aclrequests import (
    HOST,
    HOSTS,
    POLICIES,
    REQUESTS,
    RULES,
    TOPICS,
    asked,
    signed,
)
from tests.support.cli import ROOT

GOLDEN = Path(__file__).parent.parent / "golden" / "acl"
SIGNING = {"pub", "sub", "none"}
"""Users who sign, and are no administrators."""
FOREIGN = ("query offset gsub Secret", "lite pull gsub Secret", "lock gother Orders",
           "max offset Secret")  # fmt: skip
"""Requests with a topic or group that none of them has; the others are what ``sub`` may have."""
ADMINS = {21, 26, 28, 43, 222}


def matrix(release: str = "5.3.2") -> dict[tuple[int, str], dict[str, str]]:
    """(code, request) -> user -> the broker's answer."""
    with (GOLDEN / f"matrix-{release}.tsv").open() as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    return {(int(row.pop("code")), row.pop("request")): row for row in rows}


def documented(name: str) -> dict[int, list[str]]:
    """Code -> the other columns of a table in the documentation."""
    text = (ROOT / "docs" / "serving.md").read_text("utf-8")
    table = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in table.strip().splitlines()[2:]]
    return {
        int(code): rest for codes, *rest in rows for code in codes.split(", ") if code.isdigit()
    }  # fmt: skip


def stricter() -> dict[int, list[str]]:
    """Code -> what is needed here, and why."""
    return documented("stricter")


def wanted(code: int, name: str) -> set[str]:
    """The users who sign, whom 5.3.2 lets pass and we do not."""
    if code not in stricter():
        return set()
    if code in ADMINS or code == 33 or name in FOREIGN:
        return SIGNING
    if code == 36:
        return {"sub"} if name.endswith("of Secret") else set()
    return {"sub", "none"} if code == 37 else {"pub", "none"}


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    (tmp_path / "plain_acl.yml").write_text(RULES)
    return Guard(AccessRules(tmp_path), TOPICS.get)


def test_every_request_of_every_user(guard: Guard) -> None:
    """Where 5.3.2 refuses, ours does; where only ours refuses, the documentation says why."""
    found: dict[str, set[str]] = defaultdict(set)
    listed: dict[str, set[str]] = {}
    answers = matrix()
    assert sum(map(len, answers.values())) == 64 * 8
    for (code, name), row in answers.items():
        passing = {user for user, answer in row.items() if answer.startswith("pass")}
        mark = f"{code} {name}"
        for user in row:
            refusal = guard.refusal(HOSTS.get(user, HOST), asked(code, name, user))
            assert refusal or user in passing, (mark, user)
            if refusal and user in passing:
                found[mark].add(user)
        if passing_here := passing & wanted(code, name):
            listed[mark] = passing_here
    assert found == listed
    assert {int(mark.split()[0]) for mark in found} == stricter().keys() & {c for c, _ in answers}


def test_every_request_of_every_user_of_acl_2(tmp_path: Path) -> None:
    """Beside 5.5.0: each difference is documented, and nobody passes who has no rights at all."""
    (tmp_path / "rules.yml").write_text(POLICIES)
    guard = Guard(AccessRules(tmp_path), TOPICS.get)
    refused, passing = set[int](), set[int]()
    answers = matrix("5.5.0")
    assert sum(map(len, answers.values())) == 64 * 8
    for (code, name), row in answers.items():
        for user, answer in row.items():
            refusal = guard.refusal(HOSTS.get(user, HOST), asked(code, name, user))
            if answer.startswith("pass") and refusal:
                refused.add(code)
            elif not answer.startswith("pass") and not refusal:
                passing.add(code)
                assert user == ("pub" if code == 37 else "sub"), (code, name)
    listed = documented("beside 5.5.0")
    assert passing == {code for code, (theirs, *_) in listed.items() if theirs == "refused"}
    only_here = {code for code, (theirs, *_) in listed.items() if theirs == "passes"}
    assert only_here <= refused <= only_here | stricter().keys()


async def served_codes(store: Path) -> set[int]:
    settings = read_store_settings(store)
    served = ServedStore(BrokerIdentity.of(settings), settings, store)
    broker = Broker(served, FirstPosition.AS_ASKED, 0, Holds())
    try:
        return {*broker.handlers, *NameServer([broker], None).handlers}
    finally:
        await broker.close()


def test_every_request_that_is_served_has_a_row(store: Path) -> None:
    """Every other that has a name here has one too, but for the one that only a server sends."""
    served = asyncio.run(served_codes(store))
    assert len(served) > 30
    assert served <= TABLE.keys()
    assert {*RequestCode} - TABLE.keys() == {
        RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    }  # fmt: skip


def test_a_request_without_a_row_is_an_administrators(guard: Guard) -> None:
    """Nothing is open because nobody thought of it."""
    credentials = (("subuser01", "subsecret01"), ("admin0001", "adminsecret"))
    refusals = [guard.refusal(HOST, signed(9999, {}, b"", *each)) for each in credentials]
    assert refusals == [
        "AccessKey 'subuser01' lacks the rights of an administrator, for request 9999", None
    ]  # fmt: skip


def recorded() -> list[tuple[Frame, str]]:
    """Requests as clients signed them, and their secrets."""
    entries = json.loads((GOLDEN / "signatures.json").read_text())
    return [
        (Frame(e["code"], ext=e["ext"], body=e["body"].encode(), version=e["version"]), e["secret"])
        for e in entries
    ]


def changed(request: Frame, **ext: str) -> Frame:
    return replace(request, ext={**request.ext, **ext})


def test_signatures_of_clients() -> None:
    """Signatures of both releases are right, whatever the order of the fields, and no others."""
    assert {request.version for request, _ in recorded()} == {479, 407}
    for request, secret in recorded():
        assert is_signed(replace(request, ext=dict(sorted(request.ext.items()))), secret)
        assert sign(request, secret) == request.ext[SIGNATURE]
        assert not is_signed(request, secret + "x")
        assert not is_signed(changed(request, more="x"), secret)
        assert not is_signed(replace(request, body=b"{}"), secret)
        for wrong in ("", "é", request.ext[SIGNATURE][:-1]):
            assert not is_signed(changed(request, **{SIGNATURE: wrong}), secret)


@pytest.mark.parametrize("is_included", [False, True])
def test_a_query_by_unique_key_is_signed_either_way(is_included: bool) -> None:
    """Old clients sign before they add the field. No other field or request has this freedom."""
    fields: Mapping[str, str] = {"topic": "Orders", "key": "k", "_UNIQUE_KEY_QUERY": "true"}
    request = Frame(12, ext=dict(fields))
    signature = sign(request, "subsecret01", () if is_included else ("_UNIQUE_KEY_QUERY",))
    request.ext[SIGNATURE] = signature
    assert is_signed(request, "subsecret01")
    assert is_signed(replace(request, code=11), "subsecret01") is is_included
    assert not is_signed(changed(request, key="other"), "subsecret01")


def test_names_are_sorted_as_java_sorts_them() -> None:
    """By UTF-16: a character beyond the first plane comes before one at its end."""
    request = Frame(11, ext={"\uffee": "second", "\U0001f600": "first", "a": "zero"})
    plain = Frame(11, ext={"a": "zero", "b": "first", "c": "second"})
    assert sign(request, "subsecret01") == sign(plain, "subsecret01")


def test_no_request_of_the_matrix_is_left_out() -> None:
    """Each has its fields here."""
    assert {name for _, name in matrix()} <= REQUESTS.keys()
