"""reput: RocketMQ's message dispatch as a Spark Structured Streaming job."""

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""
interrupts: list[int] = []
"""Signals that came while packages loaded: an import may swallow the exit that they ask for."""


def __getattr__(name: str) -> str:
    """Look ``__version__`` up when it is asked for, since it slows the command's start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("reput")
    except PackageNotFoundError:
        return "0+source"
