"""Lost messages are reported here: as an error with ``failOnDataLoss``, otherwise as a warning."""

from __future__ import annotations

import logging

from reput.store.errors import CommitLogDataLossError

logger = logging.getLogger("reput")


class LossReport:
    """Reports the losses of one read, each warning once."""

    def __init__(self, fail: bool) -> None:
        self.is_error = fail
        self._said: set[str] = set()

    def report(self, case: str, detail: str, where: str = "with the remaining messages") -> None:
        """Raises CommitLogDataLossError, or logs the loss once, and ``where`` the read goes on."""
        if self.is_error:
            raise CommitLogDataLossError(case, detail)
        if detail not in self._said:
            self._said.add(detail)
            logger.warning("COMMITLOG_DATA_LOSS.%s: %s; going on %s", case, detail, where)
