"""The command that Spark runs for a Python worker, where ``workertemplate`` forks it.

It is a messenger only: it hands its streams, environment and arguments to the template, and ends
with the worker's exit code. Where the template is gone, or is asked for anything but a module, the
stub becomes the interpreter that Spark would have run. It runs without site packages, so that it
starts in 15 ms.
"""

from __future__ import annotations

import os
import socket
import sys

LENGTH_BYTES = 4
"""The size of the big-endian length before a request."""
CODE_BYTES = 1
"""The size of the answer: the worker's exit code."""


def encode(arguments: tuple[str, ...]) -> bytes:
    """Encode directory, arguments and environment of this process, none of which contains a NUL."""
    # pathlib and json would double the time that a stub takes
    directory = os.fsencode(os.getcwd())  # noqa: PTH109
    variables = [b"%s=%s" % item for item in os.environb.items()]
    parts = [directory, b"%d" % len(arguments), *map(os.fsencode, arguments), *variables]
    return b"\0".join(parts)


def decode(request: bytes) -> tuple[str, list[str], dict[str, str]]:
    """Return the directory, arguments and environment of a request."""
    directory, count, *rest = map(os.fsdecode, request.split(b"\0"))
    arguments, variables = rest[: int(count)], rest[int(count) :]
    pairs = (variable.partition("=") for variable in variables)
    return directory, arguments, {name: value for name, _, value in pairs}


def main(template: str, *arguments: str) -> int:
    """Run ``python *arguments`` as a fork of the template that listens at a path; return its exit
    code."""
    with socket.socket(socket.AF_UNIX) as connection:
        if arguments[:1] != ("-m",) or connection.connect_ex(template):
            os.execv(sys.executable, [sys.executable, *arguments])
        request = encode(arguments)
        # with its three standard streams
        socket.send_fds(connection, [len(request).to_bytes(LENGTH_BYTES)], [0, 1, 2])
        connection.sendall(request)
        # the worker holds this connection, too: it closes when template and worker are gone
        code = connection.recv(CODE_BYTES)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
