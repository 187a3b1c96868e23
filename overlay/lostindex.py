"""An index of which a broker has removed files: it is built again as a whole.

A broker that recovers from a crash, or from a server's that was killed, removes index files that
are newer than its checkpoint tells, and builds again what the last files of the log have. Queues it
completes. A dispatcher refuses to go on with such an index (decision 0019); an overlay, which is
small, and whose clients would wait for an operator, builds it again by itself.

Source: RocketMQ 5.3.3 ``IndexService.load``.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

from reput.checkpoints.agreement import BuiltOutput, what_differs
from reput.checkpoints.presence import find_loss
from reput.store import fsops
from reput.store.files import INDEX_DIRECTORY
from reput.store.log.logtail import LogTail
from reput.store.state.built import settings_of
from reput.store.state.ends import read_ends
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig

logger = logging.getLogger("reput")


def with_whole_index(config: DispatcherConfig) -> DispatcherConfig:
    """Return the configuration with which to start: where index files are gone, and nothing else
    is, the rest of them is removed, and the run begins with the log's first byte. The caller is the
    only writer of the store. Raises StoreError, OutputError."""
    ends, watermark = read_ends(config.state_directory), read_watermark(config.state_directory)
    index = config.output / INDEX_DIRECTORY
    names = [entry.name for entry in (ends.entries if ends else ()) if entry.kind == index.name]
    if watermark is None or all((index / name).exists() for name in names):
        return config
    settings, log = config.open_store()
    with closing(log):
        settings = settings_of(config.output, settings, config.flags)
        log.refresh()
        if what_differs(log, LogTail(log).settled(), watermark):
            return config
        loss = find_loss(log, watermark, BuiltOutput(config.output, settings))
        if loss is None or any(entry.kind != index.name for entry in loss.names):
            return config
    logger.warning(
        "the index of %s lacks files, as after a broker that has recovered from a crash there: "
        "building it again from the log's first byte", config.output,
    )  # fmt: skip
    fsops.remove_tree(index)
    return replace(config, replay_from="earliest")
