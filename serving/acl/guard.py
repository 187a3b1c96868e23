"""The check before every request, and the rules that it follows, read again when they change.

A server that cannot read changed rules keeps those that it has, and says so in one line. Rules of a
folder are those of ``plain_acl.yml`` and of all files below ``acl/``, as in RocketMQ's ``conf``, or
of every ``.yml`` and ``.yaml`` file below it where it has neither. A folder in which a broker keeps
users (``config`` of its store) has the rules of its databases. Source: RocketMQ 5.3.2
``PlainPermissionManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from reput.serving.acl.needs import PUBLISH, Need, TopicAt, needs_of, topic_needs
from reput.serving.acl.rocksdbrules import RuleDatabases
from reput.serving.acl.rulefile import Rules, RulesError, merged, parse_rules
from reput.serving.acl.signature import ACCESS_KEY, is_signed
from reput.serving.codes import ResponseCode
from reput.serving.connection import Connection, Refused
from reput.serving.refusals import Refusals
from reput.store.errors import UsageError

if TYPE_CHECKING:
    from reput.serving.frame import Frame

logger = logging.getLogger("reput")

LOOK_SECONDS = 1.0
"""RocketMQ looks every 5 s."""
SUFFIXES = (".yml", ".yaml")


class AccessRules:
    """The rules in a file or a folder, as they were when they could last be read."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if they cannot be read."""
        self._path = path
        self._databases = RuleDatabases(path)
        try:
            self._seen = self._contents()
            self.rules = self._parsed(self._seen)
        except (OSError, RulesError) as error:
            raise UsageError(f"cannot use the access rules of {_reason(path, error)}") from error
        self._problem = ""
        self._log_rules()

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Read them again when they have changed, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.look():
                on_change()

    def look(self) -> bool:
        """Whether other rules are followed than before. What was read is compared, since a file may
        be written twice within a tick of its times."""
        try:
            contents = self._contents()
            if contents == self._seen and not self._problem:
                return False
            rules = self._parsed(contents)
        except (OSError, RulesError, UsageError) as error:
            problem = _reason(self._path, error)
            if problem != self._problem:
                self._problem = problem
                logger.error("the access rules are kept as they were: %s", problem)
            return False
        is_changed = contents != self._seen
        self._problem, self._seen, self.rules = "", contents, rules
        self._log_rules()
        return is_changed

    def _log_rules(self) -> None:
        logger.info(
            "access rules of %s: accounts: %d; global white addresses: %d",
            self._path, len(self.rules.accounts), len(self.rules.white),
        )  # fmt: skip

    def _contents(self) -> Mapping[Path, bytes]:
        """The bytes of each file, in the order in which they count. Raises OSError,
        RulesError, UsageError."""
        if not self._path.is_dir():
            return {self._path: self._path.read_bytes()}
        if self._databases.are_there:
            return {self._path: self._databases.read()}
        below, plain = self._path / "acl", self._path / "plain_acl.yml"
        is_conf = below.is_dir() or plain.exists()
        found = sorted((below if is_conf else self._path).rglob("*"))
        files = [path for path in found if path.suffix in SUFFIXES and path.is_file()]
        if plain.exists() and plain not in files:
            files.append(plain)
        if not files:
            raise FileNotFoundError(2, "no .yml file is there", str(self._path))
        return {path: path.read_bytes() for path in files}

    def _parsed(self, contents: Mapping[Path, bytes]) -> Rules:
        several = []
        for path, content in contents.items():
            try:
                several.append(parse_rules(content))
            except RulesError as error:
                raise RulesError(_reason(path, error)) from None
        return merged(several)


class Guard:
    """Refuses what the rules do not allow the clients of one broker."""

    def __init__(self, source: AccessRules, topic_at: TopicAt) -> None:
        """``topic_at`` tells the topics of this broker's records."""
        self._source = source
        self._topic_at = topic_at
        self._refusals = Refusals("request")

    def check(self, connection: Connection, request: Frame) -> None:
        """Raise Refused unless the client may have what a request asks for."""
        reason = self.refusal(connection.peer_host, request)
        if reason is not None:
            self._refusals.note((connection.peer_host,), reason)
            raise Refused(ResponseCode.NO_PERMISSION, reason)

    def refusal(self, host: str, request: Frame) -> str | None:
        """The reason why a request of a client at this address is refused; None if it is not. May
        raise Refused for a request whose values no handler takes."""
        return self._refusal(host, request, needs_of(request, self._topic_at))

    def may_publish(self, connection: Connection, request: Frame, topics: Iterable[str]) -> bool:
        """Whether the sender of a request may publish all of these topics."""
        needs = (need for topic in topics for need in topic_needs(topic, PUBLISH))
        return self._refusal(connection.peer_host, request, needs) is None

    def _refusal(self, host: str, request: Frame, needs: Iterable[Need]) -> str | None:
        rules = self._source.rules
        if any(white.has(host) for white in rules.white):
            return None
        key = request.ext.get(ACCESS_KEY)
        if key is None:
            return f"request {request.code} is not signed: it has no {ACCESS_KEY}"
        account = rules.accounts.get(key)
        if account is None:
            return f"{ACCESS_KEY} {key!r:.80} is unknown"
        if account.is_white(host):
            return None
        if not is_signed(request, account.secret):
            return f"the signature of {ACCESS_KEY} {key!r:.80} is wrong"
        if account.is_admin:
            return None
        for need in needs:
            if not account.allows(need, host):
                return f"{ACCESS_KEY} {key!r:.80} lacks {need}, for request {request.code}"
        return None


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror}"
    return str(error) if str(path) in str(error) else f"{path}: {error}"
