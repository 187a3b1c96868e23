"""The loss that a query over queues would not notice: messages of the log that are in no queue, and
units of messages that the log does not hold.

It is looked at once when a query is planned. What a dispatcher or a broker has not built yet is lag
and no loss (``store.state.coverage``): a stream gets it later, and a batch read ends before it.
"""

from __future__ import annotations

from pathlib import Path

from reput.sources.queueoffsets import LossCheck, Queues
from reput.sources.selection import QueueSelection
from reput.store.brokerlock import broker_pid
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.log.places import AsOf
from reput.store.log.record import Record
from reput.store.state.coverage import read_coverage
from reput.store.state.visible import read_end


def check_coverage(
    output: Path,
    settings: StoreSettings,
    log: CommitLog,
    queues: Queues,
    selection: QueueSelection,
    as_of: AsOf | None,
    loss: LossCheck,
) -> None:
    """Report what the selected queues lack of the log up to ``as_of``, and what they hold beyond
    the log's end. ``queues`` were read before.

    Raises CommitLogDataLossError as ``loss`` does, StoreError.
    """
    dispatched = read_end(output / STATE_DIRECTORY)
    end = None if dispatched is None else dispatched.end_offset
    log_end = LogTail(log).settled(end or _known_end(queues, log))
    if end is None and broker_pid(output) is None:
        for key, queue in queues.items():
            if (queue_end := queue.max_physic_offset) > log_end:
                loss.report(
                    "QUEUE_ABOVE_LOG",
                    f"topic {key.topic} queue {key.queue_id} of {output} holds units up to "
                    f"physical offset {queue_end}, but the log ends at {log_end}: the "
                    "queues were copied later than the log, or the log lost its end; a broker "
                    "cuts them when it starts, and so does "
                    f"{command_line('run', settings.root, output, '--adopt', '--once')}",
                )
    if as_of is not None:
        log_end = as_of.end(log, log_end if end is None else end)
        end = None if end is None else log_end
    coverage = read_coverage(output, settings, log, end, log_end, selection.takes)
    if coverage.is_loss:
        loss.report("NOT_IN_QUEUES", coverage.line(settings.root, output) or "")


def _known_end(queues: Queues, log: CommitLog) -> int:
    """The end of the last record that a unit leads to, so that the log is not walked up to it; 0
    where a last unit leads to none."""
    units = [queue.files.last_unit(queue.end_unit * queue.unit_size) for queue in queues.values()]
    last = max((unit for unit in units if unit is not None), default=None)
    is_record = last is not None and isinstance(log.record_at(*last), Record)
    return sum(last) if last is not None and is_record else 0
