"""The users and policies that a broker with ACL 2.0 keeps in RocksDB, as a file of ours.

A copy of the databases is read, so that a broker may go on writing them and nothing is written
beside them. A copy that was made during a write may not open; the next look makes another one.

Source: RocketMQ 5.3.3 ``LocalAuthenticationMetadataProvider`` and
``LocalAuthorizationMetadataProvider``, which write fastjson2's JSON with the numbers of enums; an
entry about a namespace, and the action ``ANY``, match no request there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from reput.serving.acl.rulefile import RulesError
from reput.store import fsops
from reput.store.errors import UsageError

USERS, ACLS = "users", "acls"
"""The two databases, below ``config`` of a store."""
_CURRENT, _LOCK = "CURRENT", "LOCK"
_USER_PREFIX = "User:"
_USER_TYPES = MappingProxyType({1: "Super", 2: "Normal"})
_USER_STATUSES = MappingProxyType({1: "enable", 2: "disable"})
_POLICY_TYPES = MappingProxyType({1: "Custom", 2: "Default"})
_DECISIONS = MappingProxyType({1: "Allow", 2: "Deny"})
_ACTIONS = MappingProxyType(
    {1: "All", 3: "Pub", 4: "Sub", 5: "Create", 6: "Update", 7: "Delete", 8: "Get", 9: "List"}
)
_RESOURCES = MappingProxyType({2: "Cluster", 4: "Topic", 5: "Group"})
_ANY_RESOURCE = 1
_PATTERN_ANY, _PATTERN_PREFIXED = 1, 3
_State = tuple[tuple[str, int, int], ...]
"""Name, size and time of change, in ns, of every file."""


class RuleDatabases:
    """The databases below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[_State, bytes] | None = None

    @property
    def are_there(self) -> bool:
        """Whether a broker keeps users there."""
        return (self._directory / USERS / _CURRENT).is_file()

    def read(self) -> bytes:
        """Return their rules as a file of ours; they are read only where they have changed.

        Raises OSError, RulesError for what a broker does not write, UsageError without rocksdict.
        """
        state = self._state()
        if self._seen is None or self._seen[0] != state:
            try:
                rules = self._rules()
            except (KeyError, TypeError, AttributeError) as error:
                line = f"a record of {self._directory} is none of a broker: {error!r:.80}"
                raise RulesError(line) from None
            self._seen = state, json.dumps(rules, ensure_ascii=False).encode()
        return self._seen[1]

    def _rules(self) -> dict[str, Any]:
        users = [_user(fields) for _, fields in self._records(USERS)]
        names = {user["username"] for user in users}
        subjects = ((key.removeprefix(_USER_PREFIX), fields) for key, fields in self._records(ACLS))
        # policies outlive a user that was deleted
        acls = [_acl(name, fields) for name, fields in subjects if name in names]
        return {"users": users, "acls": acls}

    def _state(self) -> _State:
        paths = [path for name in (USERS, ACLS) for path in (self._directory / name).glob("*")]
        stats = [(str(path), path.stat()) for path in sorted(paths)]
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)

    def _records(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Key and value of each record of a database; none where it is missing."""
        source = self._directory / name
        if not (source / _CURRENT).is_file():
            return
        try:
            import rocksdict  # noqa: PLC0415 - an extra
        except ImportError:
            raise UsageError(
                "`acl=` needs the package rocksdict for a broker's users: pip install "
                "'reput[rocksdb]'"
            ) from None
        with tempfile.TemporaryDirectory(prefix="reput-acl-") as directory:
            for path in source.iterdir():
                if path.name != _LOCK:
                    fsops.write_new_file(Path(directory) / path.name, path.read_bytes())
            options = rocksdict.Options(raw_mode=True)
            access = rocksdict.AccessType.read_only()
            try:
                database = rocksdict.Rdict(directory, options, access_type=access)
                items = cast(Iterable[tuple[bytes, bytes]], database.items())
                found = [(key.decode(), json.loads(value)) for key, value in items]
                database.close()
            except Exception as error:  # rocksdict has no class of its own for errors
                raise RulesError(f"{source} cannot be read: {type(error).__name__}") from None
        yield from found


def _user(fields: Mapping[str, Any]) -> dict[str, str]:
    return {
        "username": fields["username"],
        "password": fields["password"],
        "userType": _word(fields, "userType", _USER_TYPES),
        "userStatus": _word(fields, "userStatus", _USER_STATUSES),
    }


def _acl(username: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    policies = [
        {
            "policyType": _word(policy, "policyType", _POLICY_TYPES),
            "entries": [
                entry for fields in policy.get("entries", ()) for entry in _entries(fields)
            ],
        }
        for policy in fields.get("policies", ())
    ]
    return {"subject": f"{_USER_PREFIX}{username}", "policies": policies}


def _entries(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    resource = _resource(fields["resource"])
    if resource is not None:
        yield {
            "resource": resource,
            "actions": [_ACTIONS[code] for code in fields["actions"] if code in _ACTIONS],
            "sourceIps": (fields.get("environment") or {}).get("sourceIps") or [],
            "decision": _word(fields, "decision", _DECISIONS),
        }


def _resource(fields: Mapping[str, Any]) -> str | None:
    """A resource as a file writes it; None for one that no request has."""
    kind, pattern = fields["resourceType"], fields["resourcePattern"]
    if kind == _ANY_RESOURCE:
        return "*"
    if kind not in _RESOURCES:
        return None
    name = "" if pattern == _PATTERN_ANY else fields["resourceName"]
    star = "*" if pattern in (_PATTERN_ANY, _PATTERN_PREFIXED) else ""
    return f"{_RESOURCES[kind]}:{name}{star}"


def _word(fields: Mapping[str, Any], name: str, words: Mapping[int, str]) -> str:
    """The word of a number; RocketMQ leaves out what is null, which a file may leave out too."""
    number = fields.get(name)
    if number is None:
        return ""
    if number not in words:
        raise RulesError(f"{name} is {number!r:.20}, which no broker of 5.3.3 writes")
    return words[number]
