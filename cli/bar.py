"""The progress bar of a command on a terminal. rich draws it, and is loaded only for it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

REFRESHES_PER_SECOND = 2
"""Each sends the whole bar, nearly a kilobyte, which must not fill a slow line."""


class Bar(Progress):
    """A bar over the terminal's width on stderr, and below it a line with counts, rates and lag."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn())
        super().__init__(
            *columns, console=Console(stderr=True), transient=True, expand=True,
            refresh_per_second=REFRESHES_PER_SECOND,
        )  # fmt: skip

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar and the line below it. rich calls it at each refresh."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["at"], no_wrap=True, overflow="ellipsis")

    def print_above(self, line: str) -> None:
        """Print a line above the bar, as it is and unbroken."""
        self.console.print(Text(line), soft_wrap=True)
