"""The lines that say what to install, where a package of an extra is missing, name the package."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.readers.stores import SmallStore
from tests.support.cli import Call

COMMANDS = {
    "duckdb": ["sql", "STORE", "select 1"],
    "kafka": ["run", "STORE", "--output", "OUTPUT", "--kafka", "127.0.0.1:1"],
    "deltalake": ["run", "STORE", "--output", "OUTPUT", "--delta", "TABLE"],
    "pyiceberg": [
        "run",
        "STORE",
        "--output",
        "OUTPUT",
        "--iceberg",
        "a.b.c",
        "--iceberg-config",
        "CATALOGS",
    ],
    "fastavro": [
        "run",
        "STORE",
        "--output",
        "OUTPUT",
        "--delta",
        "TABLE",
        "--delta-schema",
        "AVRO.toml",
    ],
    "google.protobuf": [
        "run",
        "STORE",
        "--output",
        "OUTPUT",
        "--delta",
        "TABLE",
        "--delta-schema",
        "PROTO.toml",
    ],
    "prometheus_client": ["run", "STORE", "--output", "OUTPUT", "--metrics-port", "0"],
    "prometheus_client, read": ["top", "STORE", "--metrics", "9464"],
    "yaml": ["serve", "STORE", "--acl", "RULES"],
}
"""By the module that each needs."""


@pytest.mark.extended
@pytest.mark.parametrize(("needed", "words"), COMMANDS.items(), ids=COMMANDS)
def test_an_extra_that_is_missing(
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    needed: str,
    words: Sequence[str],
) -> None:
    """pip finds the extra in what is installed, and takes with it what provides the module."""
    module = needed.partition(",")[0]
    small = SmallStore(tmp_path / "STORE")
    small.append()
    small.write()
    (tmp_path / "RULES").write_text("accounts: []")
    (tmp_path / "CATALOGS").write_text("[a]\ntype = 'sql'\nuri = 'sqlite://'\n")
    (tmp_path / "a").write_text("{}")
    (tmp_path / "AVRO.toml").write_text("[T]\navro-schema = 'a'")
    (tmp_path / "PROTO.toml").write_text("[T]\nprotobuf-descriptors = 'a'\nprotobuf-message = 'b'")
    names = "STORE", "OUTPUT", "TABLE", "RULES", "CATALOGS", "AVRO.toml", "PROTO.toml"
    paths = {name: tmp_path / name for name in names}
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, module, None)
        done = call(*(paths.get(word, word) for word in words))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert not paths["OUTPUT"].exists()
    found = re.search(r"pip install '\S+'", done.stderr)
    assert found is not None
    name, verb, *rest = shlex.split(found[0])
    # with --no-index it ends with 0 if all is here, and needs no network
    pip = [sys.executable, "-m", name, verb, "--dry-run", "--no-index", *rest]
    said = subprocess.run(pip, capture_output=True, text=True, check=True, timeout=60)
    assert "does not provide the extra" not in said.stderr
    providers = set(packages_distributions()[module.partition(".")[0]])
    needs = re.findall(
        r"^Requirement already satisfied: (\S+?)[\[<>=!~].*\(from reput\[\w+\]\)",
        said.stdout,
        re.MULTILINE,
    )
    found_names = {need.lower().replace("_", "-") for need in needs}
    assert found_names & {provider.lower().replace("_", "-") for provider in providers}
