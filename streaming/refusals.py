"""The refusals of a start that files alone decide.

A command asks before it starts Java, which takes seconds; the start itself asks again.
"""

from __future__ import annotations

from pathlib import Path

from reput.checkpoints.ownership import check_is_free
from reput.checkpoints.swap import has_begun_swap
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import StoreError, UsageError
from reput.store.files import STATE_DIRECTORY, WATERMARK_FILE
from reput.store.queue.consumequeue import list_queues
from reput.store.queue.kinds import QueueKind
from reput.store.queue.queuetype import find_batch_topics
from reput.store.state.built import settings_of
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig


def check_output(config: DispatcherConfig, given: StoreSettings) -> None:
    """Raise what a start would raise for an output; ``given`` are the store's settings.

    Nothing is changed. Raises ReputError: for another writer, settings that contradict the output,
    queues that are not ours, and topics with queues of the other kind.
    """
    check_is_free(config.output)
    if has_begun_swap(config.output):
        return  # the start completes it first
    settings_of(config.output, given, config.flags)
    if not config.adopt and read_watermark(config.state_directory) is None:
        check_queues_are_ours(given.root, config.output)
    find_batch_topics(given.root, config.output)


def check_queues_are_ours(store: Path, output: Path) -> None:
    """Raises an error where there are queues of either kind: for an output that has no watermark
    and is not adopted."""
    roots = [output / kind for kind in QueueKind]
    foreign = next((root for root in roots if next(list_queues(root), None) is not None), None)
    if foreign is None:
        return
    watermark = output / STATE_DIRECTORY / WATERMARK_FILE
    if watermark.exists():
        raise StoreError(
            f"{watermark} is damaged, both slots of it: "
            f"{command_line('verify', store, output, '--repair')} compares the queues with the "
            "log and writes it anew",
            path=watermark,
        )
    raise UsageError(
        f"{foreign} holds queues that reput did not build; write elsewhere with `output=DIR`, "
        "or pass `adopt=` to go on with them"
    )
