"""Files of access rules: what they mean, and what is wrong with them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from reput.serving.acl.accounts import Account
from reput.serving.acl.addresses import WhiteAddresses
from reput.serving.acl.guard import AccessRules
from reput.serving.acl.needs import ADMIN, PUBLISH, SUBSCRIBE, Action, Kind, Need, topic_needs
from reput.serving.acl.rulefile import RulesError, parse_rules
from reput.store.errors import UsageError
from tests.support.cli import ROOT

HOST = "192.0.2.1"


def account(text: str, key: str = "k1234567") -> Account:
    return parse_rules(text.encode()).accounts[key]


def plain(fields: str) -> Account:
    """An account of ACL 1.0 with these fields."""
    return account(f"accounts: [{{accessKey: k1234567, secretKey: s1234567, {fields}}}]")


def user(*entries: str, policy: str = "Custom") -> Account:
    """A user of ACL 2.0 with entries of one policy: resource, actions, decision, and sources."""
    return account(policies((policy, entries)))


def policies(*several: tuple[str, Iterable[str]]) -> str:
    listed = ", ".join(
        f"{{policyType: {kind}, entries: [{', '.join(map(entry, entries))}]}}"
        for kind, entries in several
    )
    users = "users: [{username: k1234567, password: x}]"
    return f"{users}\nacls: [{{subject: 'User:k1234567', policies: [{listed}]}}]"


def entry(text: str) -> str:
    resource, actions, decision, *sources = text.split()
    return (
        f"{{resource: '{resource}', actions: [{actions}], decision: {decision}, "
        f"sourceIps: {sources}}}"
    )


def may(found: Account, word: str, name: str, kind: Kind = Kind.TOPIC, host: str = HOST) -> bool:
    """Whether an account may Pub, Sub or Get."""
    return found.allows(Need(kind, name, (Action(word),)), host)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", [], [HOST, "::1"]),
        ("*", [HOST, "::1"], []),
        ("*.*.*.*", [HOST, "::1"], []),
        ("192.0.2.1", [HOST, "::ffff:192.0.2.1"], ["192.0.2.11", "::1", ""]),
        ("192.0.2.*", [HOST, "192.0.2.255"], ["192.0.3.1", "::1"]),
        ("192.0.*", [HOST, "192.0.9.9"], ["192.1.2.1"]),
        ("192.0. *", [HOST, "192.0.9.9"], ["192.1.2.1"]),
        ("192.*.2.1", ["192.0.2.1", "192.9.2.1"], ["192.0.3.1"]),
        ("192.0.2.10-20", ["192.0.2.10", "192.0.2.20"], [HOST, "192.0.2.21", "192.0.2.2"]),
        ("192.0.1-2.*", [HOST, "192.0.1.7"], ["192.0.3.1"]),
        ("192.0.2.{1,7}", [HOST, "192.0.2.7"], ["192.0.2.2"]),
        ("192.0.2.5, 192.0.2.{1,7},::1", [HOST, "192.0.2.5", "::1"], ["192.0.2.6"]),
        ("2001:db8::5", ["2001:db8:0:0:0:0:0:5"], ["2001:db8::6", HOST]),
        ("2001:db8::1-ff", ["2001:db8::f", "2001:db8::ff%eth0"], ["2001:db8::100", "2001:db9::f"]),
        ("2001:db8::{1,ff}", ["2001:db8::1", "2001:db8::ff"], ["2001:db8::2"]),
        ("2001:db8:*", ["2001:db8::1", "2001:db8:7::"], ["2001:db9::1"]),
    ],
)  # fmt: skip
def test_white_addresses(text: str, inside: list[str], outside: list[str]) -> None:
    """All forms that RocketMQ knows, for both families."""
    addresses = WhiteAddresses(text)
    assert [host for host in (*inside, *outside) if addresses.has(host)] == inside


@pytest.mark.parametrize(
    "text",
    ["192.0.2", "192.0.2.256", "192.0.2.9-3", "192.0.2.-3", "192.0.2.{1,2", "192.0.2.{}", "name",
     "192.0.2.1,", "1::2::3", "192.*.1", "2001:db8::g", "1:2:3", "192.0.2.+1", "192.0.2.1_0",
     "192.0.2.٣"],
)  # fmt: skip
def test_white_addresses_that_are_none(text: str) -> None:
    """A rule that would mean nothing is refused, with the rest of its file."""
    with pytest.raises(RulesError, match="account 1: white address"):
        plain(f"whiteRemoteAddress: '{text}'")


def test_permissions_of_a_plain_account() -> None:
    """A named permission before the default; words that are none mean DENY; a retry topic is its
    group's, wherever it is named."""
    found = plain(
        "defaultTopicPerm: SUB|PUB, topicPerms: [A=DENY, B= PUB , C=sub, '%RETRY%g=SUB'], "
        "defaultGroupPerm: SUBS, groupPerms: [h=PUB|SUB]"
    )
    rights = {
        name: [word for word in Action if may(found, word, name)] for name in ("A", "B", "C", "D")
    }
    assert rights == {"A": [], "B": ["Pub"], "C": [], "D": ["Pub", "Sub"]}
    assert [name for name in "ghi" if may(found, "Sub", name, Kind.GROUP)] == ["g", "h"]
    assert not found.allows(ADMIN, HOST)
    assert not may(plain("admin: false"), "Sub", "D")
    assert plain("admin: True").is_admin


def test_everybody_may_send_traces() -> None:
    """As with ACL 1.0 at a broker, and nobody may read them by that; ACL 2.0 wants an entry."""
    assert may(plain("admin:"), "Pub", "RMQ_SYS_TRACE_TOPIC")
    assert not may(plain("admin:"), "Sub", "RMQ_SYS_TRACE_TOPIC")
    assert not may(user(), "Pub", "RMQ_SYS_TRACE_TOPIC")


def test_texts_stay_texts() -> None:
    """A secret of digits, one that YAML takes for something else, and comments."""
    for secret in ("12345678", "0x1234567", "1_000_000", "2026-11-27", "1e10000"):
        text = f"accounts:\n- accessKey: k1234567\n  secretKey: {secret}  # mine\ndataVersion: []"
        assert account(text).secret == secret


def test_the_examples_of_the_documentation() -> None:
    """They are rules, and give what they say."""
    text = (ROOT / "docs" / "serving.md").read_text("utf-8")
    first, second = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for found in (account(first, "billing-app"), account(second, "billing-app")):
        assert may(found, "Sub", "Orders", host="192.168.7.4")
        assert may(found, "Sub", "billing", Kind.GROUP, host="192.168.7.4")
        assert not may(found, "Sub", "Other", host="192.168.7.4")
        assert not may(found, "Pub", "Orders", host="192.168.7.4")
    assert account(first, "billing-app").is_white("192.168.7.5")
    assert account(second, "admin").is_admin


def test_what_topics_need() -> None:
    """A group's topics are the group's; what carries messages of all topics is no topic's."""
    assert [*topic_needs("T", PUBLISH)] == [Need(Kind.TOPIC, "T", PUBLISH)]
    assert [*topic_needs("%RETRY%g", PUBLISH)] == [Need(Kind.GROUP, "g", SUBSCRIBE)]
    assert [*topic_needs("%DLQ%g", SUBSCRIBE)] == [
        Need(Kind.TOPIC, "%DLQ%g", SUBSCRIBE), Need(Kind.GROUP, "g", SUBSCRIBE)
    ]  # fmt: skip
    for name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"):
        assert [*topic_needs(name, SUBSCRIBE)] == [ADMIN]


@pytest.mark.parametrize(
    ("entries", "passes"),
    [
        (["Topic:Orders Sub Allow"], True),
        (["Topic:Orders Pub,Get Allow"], False),
        (["Topic:Orders All Allow"], True),
        (["Topic:Order Sub Allow"], False),
        (["Group:Orders Sub Allow"], False),
        (["Topic:Ord* Sub Allow"], True),
        (["Topic:* Sub Allow"], True),
        (["* Sub Allow"], True),
        (["* Sub Allow", "Topic:Orders Sub Deny"], False),
        (["* Sub Deny", "Topic:* Sub Allow"], True),
        (["Topic:* Sub Deny", "Topic:O* Sub Allow"], True),
        (["Topic:Ord* Sub Deny", "Topic:O* Sub Allow"], False),
        (["Topic:Orders* Sub Deny", "Topic:Orders Sub Allow"], True),
        (["Topic:Orders Sub Allow", "Topic:Orders Sub Deny"], False),
        (["Topic:Orders Sub Deny", "Topic:Orders Sub Allow"], False),
        (["Topic:Orders Sub Allow 192.0.2.0/24"], True),
        (["Topic:Orders Sub Allow 192.0.2.2"], False),
        (["Topic:* Sub Allow", "Topic:Orders Sub Deny 192.0.2.2"], True),
        ([], False),
    ],
)  # fmt: skip
def test_policies_are_matched_as_rocketmq_matches_them(entries: list[str], passes: bool) -> None:
    """As 5.5.0 does, in policies of both kinds; 5.3.3 orders them wrongly."""
    for policy in ("Custom", "Default"):
        assert may(user(*entries, policy=policy), "Sub", "Orders") is passes


def test_custom_policies_come_first() -> None:
    """However exact the default is."""
    text = policies(("Default", ["Topic:T Sub Deny"]), ("Custom", ["* Sub Allow"]))
    assert may(account(text), "Sub", "T")
    assert not may(account(text.replace("* Sub", "* Pub").replace("'*', actions: [Sub]",
                                        "'*', actions: [Pub]")), "Sub", "T")  # fmt: skip


def test_users() -> None:
    """A super user may have everything; one that is disabled is nobody."""
    rules = parse_rules(
        b"users:\n- {username: root, password: a, userType: super}\n"
        b"- {username: gone, password: b, userStatus: Disable}\n"
        b"acls: [{subject: 'User:gone', policies: [{entries: [{resource: '*', actions: All,"
        b" decision: Allow}]}]}]"
    )
    assert {name: found.is_admin for name, found in rules.accounts.items()} == {"root": True}
    assert not user("* All Allow").allows(ADMIN, HOST)


SECRET = "thesecret"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file must be names with values"),
        ("- a", "the file must be names with values"),
        ("accounts: [", "line 1 is no YAML"),
        (f"accounts:\n- secretKey: {SECRET}\n  accessKey: 'x", "is no YAML"),
        ("a: \xe9".encode("latin-1"), "it is no YAML: UnicodeDecodeError"),
        ("accounts: [x]", "account 1 must be names with values"),
        (f"accounts: [{{accessKey: short, secretKey: {SECRET}}}]", "must have 7 characters"),
        (f"accounts: [{{secretKey: {SECRET}}}]", "must have 7 characters"),
        (f"accounts: [{{accessKey: k1234567, secretKey: [{SECRET}]}}]", "secretKey must be one"),
        ("accounts: [{accessKey: k1234567, secret: x}]", "account 1 has 'secret', which is none"),
        ("account: []", "the file has 'account', which is none of"),
        (f"accounts: [{{accessKey: k1234567, secretKey: {SECRET}, topicPerms: [T]}}]",
         "topicPerms has 'T', which must be NAME=PERMISSION"),
        (f"accounts: [{{accessKey: k1234567, secretKey: {SECRET}, admin: maybe}}]", "admin is"),
        ("globalWhiteRemoteAddresses: [nowhere]", "the file: white address 'nowhere'"),
        ("globalWhiteRemoteAddresses: [[a]]", "globalWhiteRemoteAddresses must be texts"),
        ("users: [{username: a}]", "user 1 needs a username of its own and a password"),
        ("users: [{username: a, password: b}, {username: a, password: c}]", "user 2 needs"),
        ("users: [{username: a, password: b, userStatus: disable}, {username: a, password: b}]",
         "user 2 needs"),
        ("users: [{username: a, password: b}, {username: a, password: b, userStatus: disable}]",
         "user 2 needs"),
        ("users: [{username: a, password: b, userType: King}]", "userType is 'king', not one of"),
        ("users: []\naccounts: []", "the file has 'accounts'"),
        ("acls: [{subject: 'User:a'}]", "subject 'a' is no user"),
        (policies(("Custom", ["Topic:T Sub Maybe"])), "decision is 'maybe', not one of"),
        (policies(("Custom", ["Topic:T Fly Allow"])), "'Fly' is no action"),
        (policies(("Custom", ["Tonic:T Sub Allow"])), "resource 'Tonic:T' must be Topic:NAME"),
        (policies(("Custom", ["Topic: Sub Allow"])), "resource 'Topic:' must be Topic:NAME"),
        (policies(("Custom", ["T Sub Allow x"])), "'x' is neither address nor"),
        (policies(("Odd", [])), "policyType is 'odd', not one of"),
    ],
)  # fmt: skip
def test_files_that_are_no_rules(tmp_path: Path, text: str | bytes, words: str) -> None:
    """They end a start with one line, which shows no secret."""
    path = tmp_path / "rules.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        AccessRules(path)
    line = str(caught.value)
    assert words in line
    assert line.startswith(f"cannot use the access rules of {path}: ")
    assert SECRET not in line
    assert len(line.splitlines()) == 1


def write(path: Path, key: str, secret: str = "s1234567", white: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"accounts: [{{accessKey: {key}, secretKey: {secret}}}]\n"
        f"globalWhiteRemoteAddresses: ['{white}']"
    )
    return path


def test_a_folder(tmp_path: Path) -> None:
    """RocketMQ's conf has other files beside plain_acl.yml and acl/; of an access key in two files,
    the first counts."""
    conf = tmp_path / "conf"
    write(conf / "plain_acl.yml", "twice123", "fromplain", "192.0.2.1")
    write(conf / "acl" / "a.yml", "twice123", "fromacl", "192.0.2.2")
    write(conf / "acl" / "deeper" / "b.yaml", "other123")
    (conf / "tools.yml").write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
    (conf / "acl" / "notes.txt").write_text("- none")
    rules = AccessRules(conf).rules
    assert {key: found.secret for key, found in rules.accounts.items()} == {
        "twice123": "fromacl", "other123": "s1234567"
    }  # fmt: skip
    assert [any(w.has(f"192.0.2.{n}") for w in rules.white) for n in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert AccessRules(conf / "acl").rules.accounts.keys() == {"twice123", "other123"}
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "empty", "no .yml file is there"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(UsageError, match=words):
            AccessRules(path)


def test_rules_that_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used leaves the former rules in force, and one line says so."""
    caplog.set_level(logging.INFO, "reput")
    path = write(tmp_path / "acl.yml", "first123")
    rules = AccessRules(path)
    assert not rules.look()
    write(path, "other123")  # of the same size
    assert rules.look()
    assert rules.rules.accounts.keys() == {"other123"}
    for broken in ("", "accounts: [{accessKey: other123", "accounts: [{}]"):
        path.write_text(broken)
        caplog.clear()
        assert not rules.look()
        assert not rules.look()
        (line,) = caplog.messages
        assert line.startswith(f"the access rules are kept as they were: {path}: ")
    path.unlink()
    caplog.clear()
    assert not rules.look()
    assert caplog.messages == [
        f"the access rules are kept as they were: {path}: No such file or directory"
    ]
    assert rules.rules.accounts.keys() == {"other123"}
    write(path, "third123")
    caplog.clear()
    assert rules.look()
    assert caplog.messages == [f"access rules of {path}: accounts: 1; global white addresses: 1"]
    assert rules.rules.accounts.keys() == {"third123"}
