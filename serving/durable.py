"""Answers to requests that write: they are sent when what was written is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from reput.serving.codes import ResponseCode
from reput.serving.connection import Connection, Refused
from reput.serving.frame import Frame
from reput.store.errors import BusyError, RefusedMessageError, StoreError
from reput.store.log.record import Record


def answer_when_durable(
    connection: Connection,
    request: Frame,
    written: Future[list[Record]],
    answer: Callable[[Sequence[Record]], Frame],
    failed: ResponseCode,
) -> None:
    """Answer with ``answer``, made of the records as they are stored, or with the code ``failed``
    where they could not be written."""
    loop = asyncio.get_running_loop()

    def reply() -> None:
        error = written.exception()
        frame = request.answer(failed, str(error)) if error else answer(written.result())
        if not request.is_one_way:
            connection.send(frame)

    def done(_: Future[list[Record]]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(reply)

    written.add_done_callback(done)


@contextmanager
def refusing(failed: ResponseCode) -> Iterator[None]:
    """Refuse the request as RocketMQ would where a record cannot be made, as busy where too much
    waits, and with ``failed`` where nothing can be written any more."""
    try:
        yield
    except RefusedMessageError as error:
        raise Refused(ResponseCode(error.code), str(error)) from error
    except BusyError as error:
        raise Refused(ResponseCode.SYSTEM_BUSY, str(error)) from error
    except StoreError as error:
        raise Refused(failed, str(error)) from error
