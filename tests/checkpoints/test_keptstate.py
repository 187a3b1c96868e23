"""The positions that a rewind sets aside: ours are listed and dropped, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from reput.checkpoints.keptstate import drop_kept, keep_state, list_kept
from tests.support.golden import tree
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder


def test_directories_of_other_names_stay(tmp_path: Path) -> None:
    """A copy that an operator has made beside ours is no rewind, and its name is no number."""
    output, spark = tmp_path / "output", tmp_path / "output" / "reput" / "spark"
    state = output / "reput"
    state.mkdir(parents=True)
    (state / "watermark").write_bytes(b"1")
    first = keep_state(output, spark, 200, 100)
    others = [state / name for name in ("rewound-1.copy", "rewound-old", "rewound-01")]
    for other in others:
        other.mkdir()
        (other / "watermark").write_bytes(b"2")
    second = keep_state(output, spark, 100, 50)
    assert (first.name, second.name) == ("rewound-1", "rewound-2")
    kept = list_kept(output, spark)
    assert [(rewind.path, rewind.from_offset, rewind.to_offset) for rewind in kept] == [
        (first, 200, 100), (second, 100, 50),
    ]  # fmt: skip
    assert drop_kept(output, spark) == kept
    assert {path.split("/")[0] for path in tree(state)} == {
        "watermark", *(other.name for other in others),
    }  # fmt: skip


def test_a_copy_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    """A power cut at any moment leaves all of a copy, or none under its name."""
    output = tmp_path / "output"
    state, spark = output / "reput", output / "reput" / "spark"
    for path in (state / "watermark", state / "followers" / "table.json", spark / "offsets" / "3"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(path.name.encode())
    with Recorder(output) as recorder:
        kept = keep_state(output, spark, 200, 100)
    name = str(kept.relative_to(output))
    wanted = {f"{name}/{path}": data for path, data in tree(kept).items()}
    assert len(wanted) == 4
    for count in range(len(recorder.operations) + 1):
        for image in Disk.after(recorder, count).chosen_images():
            files = {
                path: data
                for path, data in image.tree.items()
                if path.startswith(f"{name}/") and data is not None
            }
            assert name not in image.tree or files == wanted
