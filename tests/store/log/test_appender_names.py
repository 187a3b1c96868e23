"""The names of a log's files, which a power cut may take although their bytes are on the disk."""

from __future__ import annotations

from pathlib import Path

from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from tests.support.power_cuts import Disk, mount
from tests.support.recorder import Recorder

FILE_SIZE = 2048
RECORD = Record(topic=b"T", body=b"x" * 500)


def test_a_power_cut_leaves_no_file_without_those_before_it(tmp_path: Path) -> None:
    """Whichever of the names that nobody has synced are on the disk, those of killed processes
    among them: readers would take the file between two others for one that was lost."""
    root = tmp_path / "disk"
    root.mkdir()
    with Recorder(root) as recorder:
        for _ in range(3):
            with LogAppender(root / "store", file_size=FILE_SIZE) as appender:
                appender.append_all([RECORD] * 4)
    disk, found = Disk(recorder.begin, recorder.directories()), set()
    for operation in recorder.operations:
        disk.apply(operation)
        for image in disk.chosen_images():
            mount(image.tree, root)
            names = sorted(path.name for path in root.glob("store/commitlog/*"))
            assert names == [f"{at * FILE_SIZE:020d}" for at in range(len(names))]
            found.add(len(names))
    assert found == set(range(6))
