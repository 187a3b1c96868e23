"""Keeps pandas out of the processes that are ours alone: the command's and the workers' template.
In plain mode (``sources.plainspark``) it stays, since public ways of pyspark ask for it.

Arrow imports it with the first array that is made of Python objects, and pyspark with the first
call to Java, only to know whether a value is one of its own. That takes half a second of CPU in
each process, and nothing there uses it. A None in ``sys.modules`` would not do: Arrow takes it for
the module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from reput.sources.plainspark import is_plain


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> None:
        if name == "pandas" and not is_plain():
            raise ModuleNotFoundError("pandas is left out of this process", name=name)


def leave_out_pandas() -> None:
    """Make every later import of pandas in this process fail as if it were not installed."""
    sys.meta_path.insert(0, _WithoutPandas())
