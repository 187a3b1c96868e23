"""The topics that a store and an output know, and what is said of one that neither does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.store.errors import UsageError
from reput.store.queue.topics import check_topics, known_topics, near_topics, topics_with_queues


def make_queue(root: Path, kind: str, topic: str) -> None:
    """The directory of its queue 0."""
    (root / kind / topic / "0").mkdir(parents=True)


def refusal(topic: str, *roots: Path) -> str:
    """The line about a topic that nobody knows."""
    with pytest.raises(UsageError) as caught:
        check_topics([topic], *roots)
    return str(caught.value)


def test_a_topic_is_known_by_each_of_three_signs(tmp_path: Path) -> None:
    """A queue of either kind, in the store or in the output; a declaration in the store, also of a
    topic to which nobody has sent a message yet."""
    store, output = tmp_path / "store", tmp_path / "out"
    make_queue(store, "consumequeue", "Simple")
    make_queue(output, "consumequeue", "Built")
    make_queue(output, "batchconsumequeue", "Batch")
    make_queue(output, "consumequeue_ext", "ExtAlone")
    (store / "config").mkdir()
    declared: dict[str, object] = {"Declared": {}, "订单": {"attributes": {}}}
    text = json.dumps({"topicConfigTable": declared})
    (store / "config" / "topics.json").write_text(text)
    names = {"Simple", "Built", "Batch", "Declared", "订单"}
    assert known_topics([store, output]) == names
    assert topics_with_queues(output) == {"Built", "Batch"}
    check_topics(sorted(names), store, output)
    check_topics([], store, output)
    for topic in ("ExtAlone", "simple", "Declare", ""):
        assert f"no topic {topic} in {store} or {output}: " in refusal(topic, store, output)
    # the second of several is looked at too
    with pytest.raises(UsageError, match="no topic Second in"):
        check_topics(["Simple", "Second"], store, output)


def test_who_looks_for_a_topic_is_told_where_it_was_looked_for(tmp_path: Path) -> None:
    """Each place once, and the command that lists what is there; where there is nothing, what makes
    queues."""
    store, output = tmp_path / "store", tmp_path / "out"
    make_queue(store, "consumequeue", "Orders")
    text = refusal("Payments", store, output)
    assert f"in {store} or {output}: it has no queues there" in text
    assert text.endswith(f"; reput status {store} --output {output} lists the topics")
    text = refusal("Payments", store, store)
    assert f"no topic Payments in {store}: it has" in text
    assert text.endswith(f"; reput status {store} lists the topics")
    text = refusal("Payments", output, output)
    assert text.endswith("build queues with reput run, or give the `output=` that has them")
    assert "did you mean" not in text
    assert "no topic Ord\\ners in" in refusal("Ord\ners", store, store)


def test_the_nearest_names_are_shown() -> None:
    """Three at most, the nearest first; none that looks otherwise."""
    names = {"Orders", "Order", "Orderes", "Ordering", "Payments"}
    assert near_topics("Orderz", {"Payments"}) == ""
    assert near_topics("Ordersx", {"Orders", "Payments"}) == " (did you mean Orders?)"
    found = near_topics("Orders", names)
    assert found.startswith(" (did you mean Orders or ")
    assert found.count(" or ") == 2
    assert "Payments" not in found
