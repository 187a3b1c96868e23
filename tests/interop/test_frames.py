"""Frames held against RocketMQ's own codec, both ways and in both encodings."""

from __future__ import annotations

import random

from reput.serving.frame import Codec, Frame, decode, encode
from tests.interop.rocketmq import ask_frames, require_maven
from tests.serving.test_frame import any_frame

COUNT = 500


def words(frame: Frame) -> str:
    """A frame in the harness's words."""
    ext = ",".join(f"{k.encode().hex()}={v.encode().hex()}" for k, v in sorted(frame.ext.items()))
    remark = (frame.remark or "").encode().hex()
    fields = (frame.codec.name, frame.code, frame.opaque, frame.flag, remark, ext, frame.body.hex())
    return "\t".join(map(str, ("encode", *fields)))


def test_frames_are_rocketmqs(seed: int) -> None:
    """We decode the frames that it encodes, and it decodes ours."""
    require_maven()
    rng = random.Random(seed)
    frames = [any_frame(rng) for _ in range(COUNT)]
    for frame in frames:
        # RocketMQ reads an empty text as an absent one
        frame.ext = {key: value for key, value in frame.ext.items() if key and value}
    assert {frame.codec for frame in frames} == set(Codec)
    lines = [words(frame) for frame in frames]
    answers = ask_frames([*lines, *(f"decode\t{encode(frame).hex()}" for frame in frames)])
    for frame, line, theirs, ours in zip(
        frames, lines, answers[:COUNT], answers[COUNT:], strict=True
    ):
        assert words(decode(bytes.fromhex(theirs))) == line
        assert sorted(ours.split("\t")) == sorted(words(frame).split("\t"))
