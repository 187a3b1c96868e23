"""The worker daemon, where Spark hangs up on a worker."""

from __future__ import annotations

import socket
import struct

import pytest

from sources import daemon


def test_a_worker_that_spark_has_left_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """pyspark's own worker raises here, and its manager prints a traceback."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "right")
    for worker, raises in ((daemon.spark_worker, True), (daemon.worker, False)):
        ours, spark = socket.socketpair()
        with ours:
            spark.sendall(struct.pack("!i", 5) + b"wrong")
            spark.close()
            if raises:
                with pytest.raises(BrokenPipeError):
                    worker(ours, False)
            else:
                assert worker(ours, False) != 0
    assert capfd.readouterr() == ("", "")
