"""Reads an SVG picture that has its texts as text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

_SVG = "{http://www.w3.org/2000/svg}"


def texts_of(path: Path) -> dict[str, tuple[float, float]]:
    """Every text and where it is anchored."""
    found = ElementTree.parse(path).iter(f"{_SVG}text")
    return {text.text or "": (float(text.get("x", 0)), float(text.get("y", 0))) for text in found}


def size_of(path: Path) -> tuple[float, float]:
    """Width and height of the picture, in the unit of its texts."""
    left, top, width, height = map(
        float, ElementTree.parse(path).getroot().attrib["viewBox"].split()
    )
    if (left, top) != (0, 0):
        raise AssertionError(f"{path} does not begin at 0, 0")
    return width, height
