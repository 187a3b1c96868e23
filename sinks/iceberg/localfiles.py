"""File access for tables on a local path, with the syncs that pyiceberg leaves out.

pyiceberg 0.12 syncs nothing. After a power loss a catalog may therefore name a file that is torn or
missing. Here each file, and the names that lead to it, are on disk before anything names the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from reput.store import fsops


class SyncedFileIO(PyArrowFileIO):
    """Syncs local files as they are closed; others are as durable as their object store makes
    them."""

    def new_output(self, location: str) -> Any:
        """The file at ``location``, which is durable once it is closed."""
        scheme, _, path = self.parse_location(location, self.properties)
        output = super().new_output(location)
        return _SyncedFile(output, Path(path)) if scheme == "file" else output


class _SyncedFile(OutputFile):
    def __init__(self, output: OutputFile, path: Path) -> None:
        super().__init__(output.location)
        self._output = output
        self._path = path

    def __len__(self) -> int:
        return len(self._output)

    def exists(self) -> bool:
        return self._output.exists()

    def to_input_file(self) -> InputFile:
        return self._output.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        fsops.make_directories(self._path.parent, Path(self._path.anchor))
        return _SyncedStream(self._output.create(overwrite), self._path)


class _SyncedStream:
    """A stream that syncs its file when it is closed."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _SyncedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close and sync. Raises SyncError."""
        if self._stream.closed:
            return
        self._stream.close()
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fsops.sync(fd, self._path)
        finally:
            os.close(fd)
        fsops.sync_directory(self._path.parent)
