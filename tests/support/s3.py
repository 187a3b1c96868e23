"""A server that speaks S3, with one empty bucket: ``python -m tests.support.s3`` prints its address
and ends with its stdin. A process of its own, since deltalake waits for answers with Python's lock.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cli import ROOT
from tests.support.processes import module_command

BUCKET = "bucket"
PROCESS_TIMEOUT = 60.0


@contextmanager
def running_server() -> Iterator[dict[str, str]]:
    """The environment that tells object store libraries of it."""
    command = module_command("tests.support.s3")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield {
            "AWS_ENDPOINT_URL": process.stdout.readline().decode().strip(),
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
        }
    finally:
        process.stdin.close()
        process.wait(PROCESS_TIMEOUT)
        process.stdout.close()


def main() -> None:
    """Serve."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://{host}:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request).close()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
