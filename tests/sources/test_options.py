"""Where a store is, as the sources take it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.manystores import Stores
from reput.sources.options import SourceOptions
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import UsageError


@pytest.mark.parametrize("form", ["file://{}", "file:{}"])
def test_a_url_of_a_file_is_its_path(tmp_path: Path, form: str) -> None:
    """As Spark's own sources take one; escapes are undone."""
    place = tmp_path / "a b" / "100%"
    place.mkdir(parents=True)
    text = form.format(quote(str(place)))
    assert CommitLogOptions({"path": text})["path"] == str(place)
    assert ConsumeQueueOptions({"path": text, "output": text})["output"] == str(place)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"path": "s3://bucket/store"}, "it must be a path of a file system that every node sees"),
        ({"path": "hdfs://host/store"}, "or file:///PATH"),
    ],
)
def test_other_places_are_refused_with_the_way_out(given: dict[str, str], part: str) -> None:
    """The scheme is that of a file alone."""
    with pytest.raises(UsageError, match=part):
        CommitLogOptions(given)


@pytest.mark.parametrize("options", [CommitLogOptions, ConsumeQueueOptions])
def test_a_body_that_no_column_holds_is_not_inflated(
    options: Callable[[dict[str, str]], SourceOptions],
) -> None:
    """The column bodyCompression tells its codec then, as that of one that stays as stored."""
    limit = {"path": "/", "maxInflatedBytes": "1k"}
    for given, most in (({}, 1024), ({"includeBody": "false"}, None), (
        {"inflateBodies": "false"}, None
    )):  # fmt: skip
        assert options({**limit, **given}).row_form.max_inflated_bytes == most


@pytest.mark.parametrize(
    "text", ["[]", "5", "[5]", "null", '["/a", null]', '"/a"', '{"/a": 1}', "["]
)
def test_a_list_of_paths_is_a_list_of_texts(text: str) -> None:
    """Spark makes the option of the list that ``load`` gets; a text is no list of its letters."""
    with pytest.raises(UsageError, match=r"^option path is .*; it "):
        Stores(CommitLogOptions, {"paths": text})
    assert [*Stores(CommitLogOptions, {"paths": '["/a", "/b"]'}).by_root] == ["/a", "/b"]
