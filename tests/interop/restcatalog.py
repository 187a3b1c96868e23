"""A real Iceberg REST catalog for tests: Iceberg's own server over sqlite, whose tables and their
metadata are in a server that speaks S3.

Invariants: bound to 127.0.0.1 on a free port; it ends with its stdin, also where these tests are
killed; everything it writes besides is in a directory of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop import maven
from tests.interop.harnessjvm import last_words, lines_of, next_line
from tests.support.s3 import BUCKET, running_server

PROJECT = Path(__file__).parent / "icebergcatalog"
READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class RestServer:
    """A server that runs, with its object storage."""

    uri: str
    storage: dict[str, str]
    """pyiceberg's properties of the object storage."""

    def properties(self, uri: str | None = None) -> dict[str, str]:
        """pyiceberg's properties of the catalog; of a proxy before it, if that is given."""
        return {"type": "rest", "uri": uri or self.uri, **self.storage}


@contextmanager
def running_catalog(home: Path) -> Iterator[RestServer]:
    """Start one, whose private directory is ``home``. Skips the calling test where Java or Maven is
    missing; on CI that is a failure instead."""
    maven.require_maven("a real REST catalog of Iceberg")
    target = maven.build(PROJECT)
    with running_server() as storage:
        access = {
            "s3.endpoint": storage.environment["AWS_ENDPOINT_URL"],
            "s3.access-key-id": storage.environment["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": storage.environment["AWS_SECRET_ACCESS_KEY"],
        }
        region = storage.environment["AWS_REGION"]
        process = _start(target, home, {**access, "client.region": region})
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = next_line(lines_of(process), READY_TIMEOUT_SECONDS, "catalog", home)
            yield RestServer(f"http://127.0.0.1:{port}", {**access, "s3.region": region})
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            finally:
                process.kill()
                process.stdout.close()
    assert process.returncode == 0, last_words(home)


def _start(target: Path, home: Path, access: dict[str, str]) -> subprocess.Popen[str]:
    properties = {
        "uri": f"jdbc:sqlite:{home}/catalog.db",
        "jdbc.schema-version": "V1",
        # sqlite has one writer
        "clients": "1",
        "warehouse": f"s3://{BUCKET}/lake",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        # the other factory needs the clients of all services
        "s3.client-factory-impl": "org.apache.iceberg.aws.s3.DefaultS3FileIOAwsClientFactory",
        "s3.path-style-access": "true",
        "http-client.type": "urlconnection",
        **access,
    }
    command = [
        "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={home}", f"-Duser.home={home}",
        "-cp", f"{target / 'icebergcatalog.jar'}{os.pathsep}{target / 'lib'}{os.sep}*",
        "reput.interop.IcebergCatalog", *(f"{name}={text}" for name, text in properties.items()),
    ]  # fmt: skip
    with (home / "stderr.log").open("wb") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
