"""Files of access rules: ACL 1.0's as RocketMQ has them, and one of ours with users of ACL 2.0.

All values are taken as text, so that a secret of digits alone is one. Nothing of a file is shown in
errors but keys, names and line numbers. Source: RocketMQ 5.3.2 ``PlainPermissionManager``; 5.5.0
``AclConverter``, whose fields have the same names in JSON.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from reput.serving.acl.accounts import (
    DENY,
    Account,
    Entry,
    Permission,
    PlainAccount,
    PolicyAccount,
)
from reput.serving.acl.addresses import WhiteAddresses
from reput.serving.acl.needs import Action, Kind
from reput.serving.topics import RETRY_PREFIX
from reput.store.errors import UsageError

MIN_LENGTH = 7
"""The least length of access keys and secrets of ACL 1.0; a shorter one makes its file invalid."""

_PERMISSIONS: Mapping[str, Permission] = {
    "PUB": frozenset((Action.PUB,)),
    "SUB": frozenset((Action.SUB,)),
    "PUB|SUB": frozenset((Action.PUB, Action.SUB)),
    "SUB|PUB": frozenset((Action.PUB, Action.SUB)),
}
_ABSENT = ("", "~", "null", "Null", "NULL")
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off", *(text.lower() for text in _ABSENT)), False),
}
_ACTIONS: Mapping[str, frozenset[Action]] = {
    **{action.lower(): frozenset((action,)) for action in Action},
    "all": frozenset(Action),
    # an administrator's here, whatever policies say
    **dict.fromkeys(("create", "update", "delete", "list"), frozenset()),
}

Value = TypeVar("Value")


class RulesError(ValueError):
    """Access rules that cannot be used; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The access rules of one or several files."""

    white: tuple[WhiteAddresses, ...]
    """Clients there may have everything."""
    accounts: Mapping[str, Account]
    """By access key."""


def parse_rules(content: bytes) -> Rules:
    """Return the rules of one file. Raises RulesError, UsageError without PyYAML."""
    fields = _mapping(_parse_yaml(content), "the file")
    if "users" in fields or "acls" in fields:
        return _policies(fields)
    return _plain(fields)


def merged(several: Iterable[Rules]) -> Rules:
    """Return the rules of several files; of an access key in two of them, the first counts."""
    white: list[WhiteAddresses] = []
    accounts: dict[str, Account] = {}
    for rules in several:
        white += rules.white
        accounts = {**rules.accounts, **accounts}
    return Rules(tuple(white), accounts)


def _parse_yaml(content: bytes) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("`acl=` needs the package PyYAML: pip install 'reput[acl]'") from None
    try:
        return yaml.load(content.decode(), yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        # its text would show lines of the file, in which secrets may stand
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RulesError(f"line {line} is no YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise RulesError(f"it is no YAML: {type(error).__name__}") from None


def _plain(fields: Mapping[str, Any]) -> Rules:
    """Read ACL 1.0."""
    _check_known(fields, "the file", "globalWhiteRemoteAddresses", "accounts", "dataVersion")
    white = [_white(text, "the file") for text in _texts(fields, "globalWhiteRemoteAddresses")]
    accounts: dict[str, Account] = {}
    for number, item in enumerate(_items(fields, "accounts"), 1):
        what = f"account {number}"
        entry = _mapping(item, what)
        _check_known(
            entry, what, "accessKey", "secretKey", "whiteRemoteAddress", "admin",
            "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms",
        )  # fmt: skip
        key, secret = _text(entry, "accessKey"), _text(entry, "secretKey")
        if min(len(key), len(secret)) < MIN_LENGTH:
            raise RulesError(
                f"{what}: accessKey and secretKey must have {MIN_LENGTH} characters or more"
            )
        accounts.setdefault(key, _plain_account(entry, what, secret))
    return Rules(tuple(white), accounts)


def _plain_account(entry: Mapping[str, Any], what: str, secret: str) -> PlainAccount:
    groups = dict(_permissions(entry, what, "groupPerms"))
    topics = {}
    for name, permission in _permissions(entry, what, "topicPerms"):
        if name.startswith(RETRY_PREFIX):
            groups[name.removeprefix(RETRY_PREFIX)] = permission
        else:
            topics[name] = permission
    return PlainAccount(
        secret,
        _chosen(entry, what, "admin", _FLAGS, False),
        _white(_text(entry, "whiteRemoteAddress"), what),
        _permission(_text(entry, "defaultTopicPerm")),
        _permission(_text(entry, "defaultGroupPerm")),
        topics,
        groups,
    )


def _permissions(
    entry: Mapping[str, Any], what: str, field: str
) -> Iterable[tuple[str, Permission]]:
    for text in _texts(entry, field):
        name, equals, word = text.partition("=")
        if not name.strip() or not equals or "=" in word:
            raise RulesError(f"{what}: {field} has {text!r:.80}, which must be NAME=PERMISSION")
        yield name.strip(), _permission(word)


def _permission(word: str) -> Permission:
    """As in RocketMQ, a word that is none means DENY."""
    return _PERMISSIONS.get(word.strip(), DENY)


def _white(text: str, what: str) -> WhiteAddresses:
    try:
        return WhiteAddresses(text)
    except ValueError as error:
        raise RulesError(f"{what}: white address {error}") from None


def _policies(fields: Mapping[str, Any]) -> Rules:
    """Read users and policies of ACL 2.0."""
    _check_known(fields, "the file", "users", "acls")
    accounts: dict[str, PolicyAccount] = {}
    disabled = set()
    for number, item in enumerate(_items(fields, "users"), 1):
        what = f"user {number}"
        entry = _mapping(item, what)
        _check_known(entry, what, "username", "password", "userType", "userStatus")
        name, password = _text(entry, "username"), _text(entry, "password")
        if not name or not password or name in accounts or name in disabled:
            raise RulesError(f"{what} needs a username of its own and a password")
        is_super = _chosen(entry, what, "userType", {"super": True, "normal": False}, False)
        if _chosen(entry, what, "userStatus", {"enable": True, "disable": False}, True):
            accounts[name] = PolicyAccount(password, is_super)
        else:
            disabled.add(name)
    for number, item in enumerate(_items(fields, "acls"), 1):
        what = f"acl {number}"
        entry = _mapping(item, what)
        _check_known(entry, what, "subject", "policies")
        name = _text(entry, "subject").removeprefix("User:")
        if name not in accounts and name not in disabled:
            raise RulesError(f"{what}: subject {name!r:.80} is no user")
        _add_policies(entry, what, accounts.get(name) or PolicyAccount("", False))
    return Rules((), {**accounts})


def _add_policies(fields: Mapping[str, Any], what: str, account: PolicyAccount) -> None:
    for item in _items(fields, "policies"):
        policy = _mapping(item, f"{what}: a policy")
        _check_known(policy, what, "policyType", "entries")
        is_default = _chosen(policy, what, "policyType", {"custom": False, "default": True}, False)
        entries = account.default if is_default else account.custom
        for entry in _items(policy, "entries"):
            entries += _entries(_mapping(entry, f"{what}: an entry"), what)


def _entries(fields: Mapping[str, Any], what: str) -> Iterable[Entry]:
    """Yield an entry for each resource."""
    _check_known(fields, what, "resource", "actions", "sourceIps", "decision")
    actions: set[Action] = set()
    for word in _texts(fields, "actions"):
        if word.lower() not in _ACTIONS:
            raise RulesError(f"{what}: {word!r:.80} is no action")
        actions |= _ACTIONS[word.lower()]
    sources = []
    for text in _texts(fields, "sourceIps"):
        try:
            sources.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise RulesError(f"{what}: {text!r:.80} is neither address nor network") from None
    is_allowed = _chosen(fields, what, "decision", {"allow": True, "deny": False}, None)
    if is_allowed is None:
        raise RulesError(f"{what}: an entry needs a decision, Allow or Deny")
    for resource in _texts(fields, "resource"):
        kind, name = _resource(resource, what)
        is_prefix = name.endswith("*")
        yield Entry(
            kind, name.removesuffix("*"), is_prefix, frozenset(actions), sources, is_allowed
        )


def _resource(text: str, what: str) -> tuple[Kind | None, str]:
    if text == "*":
        return None, text
    word, _, name = text.partition(":")
    kinds = {"topic": Kind.TOPIC, "group": Kind.GROUP, "cluster": Kind.SERVER}
    if word.lower() not in kinds or not name:
        raise RulesError(f"{what}: resource {text!r:.80} must be Topic:NAME, Group:NAME or *")
    return kinds[word.lower()], name


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse_shape(what, "names with values")
    return value


def _items(fields: Mapping[str, Any], name: str) -> list[Any]:
    """A list; a single value is a list of one."""
    value = fields.get(name, "")
    if isinstance(value, str) and value in _ABSENT:
        return []
    return value if isinstance(value, list) else [value]


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    values = _items(fields, name)
    if not all(isinstance(value, str) for value in values):
        _refuse_shape(name, "texts")
    return [value.strip() for value in values]


def _text(fields: Mapping[str, Any], name: str) -> str:
    """A text; empty where it is absent."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        _refuse_shape(name, "one text")
    return "" if value in _ABSENT else value


def _chosen(
    fields: Mapping[str, Any], what: str, name: str, values: Mapping[str, Value], default: Value
) -> Value:
    """The value of a word, in any case."""
    word = _text(fields, name).strip().lower()
    if word and word not in values:
        raise RulesError(f"{what}: {name} is {word!r:.80}, not one of {', '.join(values)}")
    return values[word] if word else default


def _check_known(fields: Mapping[str, Any], what: str, *names: str) -> None:
    for name in fields:
        if name not in names:
            raise RulesError(f"{what} has {name!r:.80}, which is none of {', '.join(names)}")


def _refuse_shape(what: str, wanted: str) -> NoReturn:
    raise RulesError(f"{what} must be {wanted}")
