"""Binary layouts: each is written once, as a struct or as numpy's type, and the other follows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def struct_of(layout: np.dtype[np.void]) -> struct.Struct:
    """The struct of one record of a numpy layout, whose fields are big-endian and signed."""
    sizes = {1: "b", 2: "h", 4: "i", 8: "q"}
    return struct.Struct(">" + "".join(sizes[layout[name].itemsize] for name in layout.names or ()))


def field_positions(layout: struct.Struct) -> tuple[int, ...]:
    """Byte position of each field of a layout without padding and repeat counts."""
    order, codes = layout.format[0], layout.format[1:]
    return tuple(struct.calcsize(order + codes[:index]) for index in range(len(codes)))
