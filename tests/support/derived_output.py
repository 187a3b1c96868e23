"""Everything that is derived from a store, as the streaming query drives it, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reput.store.config import StoreSettings, read_store_settings
from reput.store.index.indexfile import IndexLayout
from reput.store.runs.dispatch import DispatchBatch
from reput.store.state.built import settings_of
from reput.streaming.commit import OnVisible
from reput.upkeep.verify.run import Verification, verify
from tests.support.configs import configured
from tests.support.golden import difference, unpack_golden
from tests.support.index_model import Content, read_content
from tests.support.sparkless import dispatch

QUEUE_TREES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


@dataclass(frozen=True)
class DerivedOutput:
    """A golden store, and an output that was dispatched from its log."""

    store: Path
    root: Path

    @classmethod
    def build(cls, name: str, directory: Path) -> DerivedOutput:
        """Dispatched in two runs, so that both slots of the watermark are used."""
        output = cls.unpack(name, directory)
        output.start()
        output.start()
        return output

    @classmethod
    def unpack(cls, name: str, directory: Path) -> DerivedOutput:
        """Nothing is dispatched yet."""
        return cls(unpack_golden(name, directory), directory / "output")

    @property
    def state(self) -> Path:
        """The output's state directory."""
        return self.root / "reput"

    @property
    def layout(self) -> IndexLayout:
        """The layout of the index files."""
        return read_store_settings(self.store).index_layout

    def start(
        self,
        *,
        part: Callable[[DispatchBatch], int] | None = None,
        on_visible: OnVisible = lambda *_: None,
        **options: Any,
    ) -> Sequence[str]:
        """As ``run_dispatcher`` does, in one batch; ``part`` chooses where it ends, ``options`` are
        fields of its configuration. The notes."""
        config = configured(self.store, self.root, once=True, **options)
        return dispatch(config, part=part, on_visible=on_visible)

    def settings(self) -> StoreSettings:
        """The settings with which it is built."""
        return settings_of(self.root, read_store_settings(self.store))

    def verify(self, *, repair: bool = False, sealed: bool = False) -> Verification:
        """This output against its log."""
        return verify(self.settings(), self.root, repair=repair, sealed=sealed)

    def files(self) -> dict[str, list[Path]]:
        """Derived files by kind."""
        trees = (*QUEUE_TREES, "index")
        found = {
            name: sorted(path for path in (self.root / name).rglob("*") if path.is_file())
            for name in trees
        }
        found["checkpoint"] = [self.root / "checkpoint"]
        found["watermark"] = [self.state / "watermark"]
        return {name: paths for name, paths in found.items() if paths}

    def index(self, root: Path | None = None) -> list[Content]:
        """The contents of the index files, oldest first; their names are times."""
        directory = (root or self.root) / "index"
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
        if any(path.stat().st_size != self.layout.file_size for path in paths):
            return []
        sizes = self.layout.max_hash_slot_num, self.layout.max_index_num
        return [read_content(path, *sizes) for path in paths]

    def unequal(self) -> list[str]:
        """The files that RocketMQ built otherwise: queues by bytes, the index by content."""
        found = [
            f"{name}/{path}"
            for name in QUEUE_TREES
            for path in difference(self.root / name, self.store / name)
        ]
        return found + (["index"] if self.index() != self.index(self.store) else [])

    def keep(self, directory: Path) -> None:
        """A copy of the output."""
        shutil.copytree(self.root, directory)

    def restore(self, directory: Path) -> None:
        """The output as it was when it was kept."""
        shutil.rmtree(self.root)
        shutil.copytree(directory, self.root)
