"""Users and policies that RocketMQ's own code has written into RocksDB are those of a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reput.serving.acl.guard import AccessRules
from reput.serving.acl.rulefile import parse_rules
from reput.store.errors import UsageError
from tests.interop.rocketmq import require_maven, write_access_rules
from tests.support.golden import tree

ORDERS = (
    "user admin secret-of-admin SUPER ENABLE", "user bill 12345678 NORMAL ENABLE",
    "user ann password-of-ann NORMAL ENABLE", "user gone password NORMAL DISABLE",
    "acl bill CUSTOM Topic:Orders Sub,Pub 192.168.0.0/16,10.0.0.1 ALLOW",
    "acl ann DEFAULT Topic:* All - DENY", "acl ann CUSTOM Group:g* Sub - ALLOW",
    "acl bill CUSTOM * Any,Get - ALLOW", "acl nobody CUSTOM * All - ALLOW",
    "acl gone CUSTOM Cluster:c Update - ALLOW",
)  # fmt: skip
FILE = """
users:
- {username: admin, password: secret-of-admin, userType: Super}
- {username: ann, password: password-of-ann}
- {username: bill, password: "12345678"}
- {username: gone, password: password, userStatus: disable}
acls:
- subject: User:ann
  policies:
  - policyType: Default
    entries: [{resource: "Topic:*", actions: [All], decision: Deny}]
  - policyType: Custom
    entries: [{resource: "Group:g*", actions: [Sub], decision: Allow}]
- subject: User:bill
  policies:
  - policyType: Custom
    entries:
    - {resource: Topic:Orders, actions: [Sub, Pub], decision: Allow,
       sourceIps: [192.168.0.0/16, 10.0.0.1]}
    - {resource: "*", actions: [Get], decision: Allow}
- subject: User:gone
  policies:
  - policyType: Custom
    entries: [{resource: "Cluster:c", actions: [Update], decision: Allow}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The directory ``config`` of a store."""
    require_maven()
    write_access_rules(tmp_path / "config", ORDERS)
    return tmp_path / "config"


def test_databases_are_read_as_a_file(config: Path) -> None:
    """Nothing is written beside them."""
    before = tree(config)
    rules = AccessRules(config).rules
    assert rules.accounts == parse_rules(FILE.encode()).accounts
    assert tree(config) == before


def test_a_broker_goes_on_writing(config: Path) -> None:
    """A user that is added is noticed; a database that cannot be read changes nothing."""
    rules = AccessRules(config)
    assert not rules.look()
    write_access_rules(config, ["user late password-of-late NORMAL ENABLE"])
    assert rules.look()
    assert rules.rules.accounts["late"].secret == "password-of-late"
    (config / "users" / "CURRENT").write_text("nothing")
    assert not rules.look()
    assert "late" in rules.rules.accounts
    with pytest.raises(UsageError, match="cannot be read"):
        AccessRules(config)


def test_users_without_policies(config: Path) -> None:
    shutil.rmtree(config / "acls")
    assert set(AccessRules(config).rules.accounts) == {"admin", "ann", "bill"}
