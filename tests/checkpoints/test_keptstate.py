"""The positions that a rewind sets aside: ours are listed and dropped, and nothing else is."""

from __future__ import annotations

import json
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


def test_a_copy_has_every_position_and_nothing_of_a_killed_one(tmp_path: Path) -> None:
    """A copy shows how an output stood: its positions, RocketMQ's checkpoint, the followers' files
    and the files of Spark's checkpoint that count. A copy that was killed has left other ones."""
    output, spark = tmp_path / "output", tmp_path / "spark"
    positions = {
        "watermark": output / "reput" / "watermark",
        "quarantine.jsonl": output / "reput" / "quarantine.jsonl",
        "checkpoint": output / "checkpoint",
        "followers/table.json": output / "reput" / "followers" / "table.json",
        "spark/metadata": spark / "metadata",
        "spark/reput-start": spark / "reput-start",
        "spark/offsets/3": spark / "offsets" / "3",
        "spark/commits/3": spark / "commits" / "3",
    }
    partial = output / "reput" / "rewound.partial"
    left = (partial / "watermark", partial / "followers" / "gone.json", spark / "sources" / "0")
    for path in (*positions.values(), *left):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(path).encode())
    copied = tree(keep_state(output, spark, 200, 100))
    about = json.loads(copied.pop("rewind.json"))
    assert (about["from"], about["to"]) == (200, 100)
    assert copied == {name: str(path).encode() for name, path in positions.items()}


def test_numbers_of_copies_go_on_and_are_their_order(tmp_path: Path) -> None:
    """So it is where some were removed, and where they have more digits."""
    output = tmp_path / "output"
    state, spark = output / "reput", tmp_path / "spark"
    for number in (2, 10):
        (state / f"rewound-{number}").mkdir(parents=True)
    assert keep_state(output, spark, 200, 100).name == "rewound-11"
    names = [kept.path.name for kept in list_kept(output, spark)]
    assert names == ["rewound-2", "rewound-10", "rewound-11"]


def test_what_is_dropped_is_all_that_was_kept_and_no_more(tmp_path: Path) -> None:
    """The rest of a copy that was killed goes too; another checkpoint that a start has moved
    aside, and an operator's copies, stay."""
    output, spark = tmp_path / "output", tmp_path / "spark"
    ours = [output / "reput" / "rewound.partial", tmp_path / "spark.replaced-1"]
    names = ("spark.replaced-1.old", "spark.replaced-01", "my-spark.replaced-1", "other.replaced-1")
    others = [tmp_path / name for name in names]
    for path in (*ours, *others):
        path.mkdir(parents=True)
        (path / "metadata").write_bytes(b"1")
    assert [kept.path for kept in drop_kept(output, spark)] == ours[1:]
    assert not any(path.exists() for path in ours)
    assert all((path / "metadata").is_file() for path in others)
