"""A run of the dispatcher without Spark: the start and the commits are the same, and who runs it
says where each batch ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from reput.checkpoints.ownership import Ownership
from reput.checkpoints.swap import finish_swap
from reput.sources.livesettings import LiveSettings
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import DispatchBatch
from reput.store.state.built import settings_of
from reput.streaming.commit import Committer, OnVisible
from reput.streaming.config import DispatcherConfig
from reput.streaming.followers import Followers
from reput.streaming.startup import Start, plan_start, replay_offset, take_over


class Running:
    """A run that has taken its output over; batches are scanned and committed on demand."""

    def __init__(
        self, log: CommitLog, start: Start, committer: Committer, live: LiveSettings
    ) -> None:
        self.log = log
        self.start = start
        self.committer = committer
        self.position = start.plan.start
        """Physical offset at which the next batch begins."""
        self._live = live

    def scan(self, end: int) -> DispatchBatch:
        """The batch from the position up to ``end``. Raises StoreError where the log changes."""
        return self.start.indexes.scan_unchanged(self.log, self.position, end, self._live.poll())

    def commit(self, batch: DispatchBatch, *, durable: bool = True) -> None:
        """Write a batch, and make it durable unless that may wait; the next one follows it."""
        self.committer.commit(batch)
        self.committer.publish(batch)
        if durable:
            self.committer.make_durable()
        self.position = batch.end


@contextmanager
def running(
    config: DispatcherConfig,
    *,
    on_visible: OnVisible = lambda *_: None,
    open_followers: type[Followers] = Followers,
) -> Iterator[Running]:
    """Start as ``run_dispatcher`` does; within the block, batches; at its end the run ends. Raises
    ReputError."""
    settings, log = config.open_store()
    with closing(log):
        finish_swap(config.output)
        settings = settings_of(config.output, settings, config.flags)
        with Ownership(config.output), ExitStack() as opened:
            start = plan_start(config, settings, log, replay_offset(config, log))
            plan, indexes = start.plan, start.indexes
            followers = open_followers(config, settings, plan.watermark.store_id)
            opened.callback(followers.close)
            committer = Committer(config, indexes, log, followers, on_visible)
            opened.callback(committer.close)
            live = LiveSettings(settings, config.broker_conf, indexes.batch_topics)
            take_over(config, start, committer, followers)
            on_visible(settings, None)
            yield Running(log, start, committer, live)
            committer.tend()
            committer.end()
            followers.catch_up(threading.Event())
