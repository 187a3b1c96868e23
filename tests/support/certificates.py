"""A certificate for TLS, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Certificate and key, PEM. Skips the calling test where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    cert, key = directory / "cert", directory / "key"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command = ["openssl", *words.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
