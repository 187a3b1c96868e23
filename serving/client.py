"""A client of a broker of RocketMQ: it sends messages, and finds them by their keys.

One connection, one request at a time. It sends no signature, so a broker that asks for credentials
refuses it. Source: RocketMQ 5.3.3 ``MQClientAPIImpl``, ``SendMessageRequestHeaderV2``,
``QueryMessageRequestHeader``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from reput.overlay.records.sends import Send
from reput.serving import frame
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.fastjson import as_object, as_text
from reput.serving.frame import Frame, FrameError
from reput.store import configjson
from reput.store.brokerconf import parse_properties
from reput.store.config import delay_levels_ms
from reput.store.errors import RefusedMessageError, StoreError, UsageError
from reput.store.log import java
from reput.store.log.record import (
    DEFAULT_DELAY_LEVELS_MS,
    END_FILE_MIN_BLANK_LENGTH,
    PHYSICAL_OFFSET_POSITION,
    Record,
    decode,
)

TIMEOUT_SECONDS = 15.0
DISPATCH_SECONDS = 60.0
"""Time that a broker gets to dispatch what it has stored."""
POLL_SECONDS = 0.1
QUEUE_SECONDS = 1.0
"""Time in which a broker stores or refuses a send that it has got, from a connection that has ended
since: it refuses one that was queued for 200 ms (``waitTimeMillsInSendQueue``)."""
_STORED: Final = frozenset((0, 10, 11, 12))
"""Answers to a send that was stored: the others say that a disk or a slave was late."""
_UNABLE: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))
_GROUP = "reput-drain"
_MAX_TIME = (1 << 63) - 1
END_OF_POSITION = PHYSICAL_OFFSET_POSITION + 8
"""Bytes of a record that have its size and its position."""


class BrokerClient:
    """A connection to a broker, or to a name server, while in a ``with`` block.

    Methods raise StoreError where the other side cannot be reached or does not answer.
    """

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._opaque = 0
        self._received = bytearray()
        self._socket: socket.socket

    def __enter__(self) -> BrokerClient:
        try:
            self._socket = socket.create_connection((self._host, self._port), TIMEOUT_SECONDS)
        except OSError as error:
            raise self._unreachable(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _unreachable(self, error: OSError | FrameError) -> StoreError:
        return StoreError(
            f"{self.address} does not answer ({error}): run the same command again once it does"
        )

    def ask(self, code: RequestCode, ext: Mapping[str, str], body: bytes = b"") -> Frame:
        """Send a request, and return the answer, whatever its code is."""
        self._opaque += 1
        request = Frame(code, self._opaque, ext=dict(ext), body=body)
        try:
            self._socket.sendall(frame.encode(request))
            while True:
                answer = self._next()
                if answer.is_response and answer.opaque == self._opaque:
                    return answer
        except (OSError, FrameError) as error:
            raise self._unreachable(error) from error

    def _next(self) -> Frame:
        while (taken := frame.take(self._received)) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("it closed the connection")
            self._received += data
        answer, end = taken
        del self._received[:end]
        return answer

    def _asked(self, code: RequestCode, ext: Mapping[str, str]) -> Frame:
        """``ask``, and raise StoreError for an answer that is none."""
        answer = self.ask(code, ext)
        if answer.code != ResponseCode.SUCCESS:
            raise StoreError(f"{self.address} answers {code.name} with {_reason(answer)}")
        return answer

    def send(self, message: Send) -> str:
        """Send a message; return the id that the broker gave it. Raises RefusedMessageError, and
        StoreError also where the broker is too busy, or has no room."""
        fields: dict[str, object] = {
            "a": _GROUP, "b": java.decode(message.topic), "c": "TBW102",
            # a topic that has to be made gets this many queues
            "d": 1, "e": message.queue_id, "f": message.sys_flag, "g": message.born_timestamp,
            "h": message.flag, "i": java.decode(message.properties), "j": message.reconsume_times,
            "k": "false", "m": "false",
        }  # fmt: skip
        if message.max_reconsume_times is not None:
            fields["l"] = message.max_reconsume_times
        ext = {name: str(value) for name, value in fields.items()}
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, ext, message.body)
        if answer.code in _UNABLE:
            raise StoreError(
                f"{self.address} takes no messages now ({_reason(answer)}): run the same command "
                "again once it does"
            )
        if answer.code not in _STORED:
            raise RefusedMessageError(answer.code, _reason(answer))
        return answer.ext.get("msgId", "")

    def find(self, topic: bytes, unique_key: bytes) -> Sequence[Record]:
        """Return the messages of a topic with a UNIQ_KEY, as many as the broker lists."""
        ext = {
            "topic": java.decode(topic), "key": java.decode(unique_key), "maxNum": "32",
            "beginTimestamp": "0", "endTimestamp": str(_MAX_TIME), "_UNIQUE_KEY_QUERY": "true",
        }  # fmt: skip
        answer = self.ask(RequestCode.QUERY_MESSAGE, ext)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise StoreError(f"{self.address} answers QUERY_MESSAGE with {_reason(answer)}")
        return list(_records(bytes(answer.body)))

    def wait_until_found(self) -> None:
        """Return when the broker has dispatched all that it had got before the call, so that
        ``find`` knows it. Raises StoreError if that takes too long."""
        # it answers, so it stands still no more
        self._asked(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        time.sleep(QUEUE_SECONDS)
        deadline = time.monotonic() + DISPATCH_SECONDS
        while True:
            answer = self._asked(RequestCode.GET_BROKER_RUNTIME_INFO, {})
            table = as_object(as_object(_json(answer)).get("table"))
            if as_text(table.get("dispatchBehindBytes", "0")) in ("0", "-1"):
                return
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self.address} has messages that it has not dispatched after "
                    f"{DISPATCH_SECONDS:.0f} s: run the same command again once it has"
                )
            time.sleep(POLL_SECONDS)

    def delay_levels_ms(self) -> Sequence[int]:
        """The delays of the broker's levels, from 1 on; RocketMQ's own if it does not tell."""
        answer = self.ask(RequestCode.GET_BROKER_CONFIG, {})
        if answer.code != ResponseCode.SUCCESS:
            return DEFAULT_DELAY_LEVELS_MS
        try:
            stated = parse_properties(bytes(answer.body))
        except ValueError as error:
            raise StoreError(f"the settings of {self.address} cannot be read: {error}") from error
        text = stated.get("messageDelayLevel")
        return delay_levels_ms(text, self.address) if text else DEFAULT_DELAY_LEVELS_MS


def only_broker(host: str, port: int) -> str:
    """The address of the only master that a name server knows. Raises UsageError where it knows
    none or several, StoreError."""
    with BrokerClient(host, port) as client:
        answer = client.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        table = as_object(as_object(_json(answer)).get("brokerAddrTable"))
    masters = {
        name: as_text(address)
        for name, broker in table.items()
        for number, address in as_object(as_object(broker).get("brokerAddrs")).items()
        if number == "0"
    }
    if len(masters) == 1:
        return next(iter(masters.values()))
    known = ", ".join(f"{name} at {address}" for name, address in sorted(masters.items()))
    raise UsageError(
        f"the name server {host}:{port} knows {known or 'no broker'}: name one with `broker=`"
    )


def _reason(answer: Frame) -> str:
    return f"code {answer.code}" + (f", {answer.remark[:200]}" if answer.remark else "")


def _json(answer: Frame) -> object:
    try:
        return configjson.parse(bytes(answer.body).decode())
    except ValueError as error:
        raise StoreError(f"an answer cannot be read: {error}") from error


def _records(body: bytes) -> Sequence[Record]:
    """The records of a body, one after the other; each has its own position in the broker's log."""
    found, at = [], 0
    while at < len(body):
        start = body[at : at + END_OF_POSITION]
        size, place = int.from_bytes(start[:4]), int.from_bytes(start[PHYSICAL_OFFSET_POSITION:])
        record = decode(body[at : at + size], place, place + size + END_FILE_MIN_BLANK_LENGTH)
        if not isinstance(record, Record):
            raise StoreError("an answer has a message that cannot be read")
        found.append(record)
        at += size
    return found
