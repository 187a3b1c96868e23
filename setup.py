"""Makes the manual pages while a wheel is built; all else of the build stands in pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent


class BuildManual(Command):
    """The step of ``build`` that makes the pages, which a wheel installs below its environment's
    ``share``. An editable installation has none: setuptools installs only packages and scripts."""

    description = "make the manual pages from the commands"
    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        """There are none."""

    def finalize_options(self) -> None:
        """There are none."""

    def run(self) -> None:
        """Write the pages, and name them to the step that collects what a wheel installs."""
        if self.editable_mode:
            return
        sys.path += [str(ROOT), str(ROOT / "src")]
        from docs.manual import pages  # noqa: PLC0415

        place = Path(self.get_finalized_command("build").build_base) / "man"
        place.mkdir(parents=True, exist_ok=True)
        made = pages(self.distribution.get_version())
        for name, text in made.items():
            (place / name).write_text(text, "utf-8")
        paths = [str(place / name) for name in made]
        self.distribution.data_files = [("share/man/man1", paths)]

    def get_source_files(self) -> list[str]:
        """Return what an sdist needs beside the packages, so that a wheel can be built from it."""
        return ["docs/manual.py"]


class Build(build):
    """``build`` with this step."""

    sub_commands = (*build.sub_commands, ("build_manual", None))


setup(cmdclass={"build": Build, "build_manual": BuildManual})
