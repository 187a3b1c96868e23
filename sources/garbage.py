"""Keeps pyspark's workers from looking for garbage among the libraries that they have loaded.

pyspark collects garbage after every task. Over the objects of numba and Arrow that takes 60 to 110
ms of CPU, more than reading 50,000 messages does; over what a task has left, it takes 1 ms.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_loaded() -> None:
    """Leave everything that is loaded out of all later collections, once in a process and in those
    that are forked from it.

    For a process that has loaded all that it will need: before it forks, or after its first task.
    """
    gc.collect()
    gc.freeze()
