"""Documents say what the code does: tables, commands and citations."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from docs.generate import TABLES, files, generated
from docs.manual import pages
from reput.cli import app

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CITATION = re.compile(r"([\w./-]+\.md)((?:(?:,| and)? ?§\d+)*)")
DECISION = re.compile(r"[Dd]ecisions? (\d{4})")


def test_generated_tables_are_up_to_date() -> None:
    """``make docs`` would change nothing."""
    for page in TABLES:
        text = (ROOT / page).read_text("utf-8")
        assert generated(page, text) == text, page
    for name, text in files().items():
        assert (ROOT / name).read_text("utf-8") == text, name


def test_manual_pages_are_roff_without_warnings(tmp_path: Path) -> None:
    """As groff formats them, whose warnings are all on."""
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not on this machine")
    made = pages("1")
    for name, text in made.items():
        (tmp_path / name).write_text(text, "utf-8")
    done = subprocess.run(
        [groff, "-man", "-ww", "-z", "-Tutf8", *made],
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_tables_of_fields_add_up() -> None:
    """Each field of a record begins where the one before it ends."""
    text = (ROOT / "docs" / "formats.md").read_text("utf-8")
    tables = re.findall(r"^\| OFFSET .*\n\|---.*\n((?:\|.*\n)+)", text, re.M)
    assert len(tables) == len(TABLES["docs/formats.md"]) == 10
    for table in tables:
        end = 0
        for offset, size in re.findall(r"^\| (\d+) \| (\d*)", table, re.M):
            assert int(offset) == end, table
            end += int(size or 0)
        assert end >= 16


def test_every_cited_document_and_section_exists() -> None:
    """In code, tests and documents: a document by its path or, in ``docs``, by its name alone."""
    sources = [
        path for path in _tracked() if path.suffix in (".py", ".md", ".java", ".toml", ".sh")
    ]
    assert len(sources) > 300
    cited, broken = 0, []
    for path in sources:
        text = path.read_text("utf-8")
        for found in CITATION.finditer(text):
            name, sections = found[1], re.findall(r"§(\d+)", found[2])
            bases = (ROOT, ROOT / "docs", REFERENCE, path.parent)
            places = [base / name for base in bases]
            document = next((place for place in places if place.is_file()), None)
            headings = document.read_text("utf-8") if document else ""
            cited += 1
            if document is None or any(f"\n## {section}. " not in headings for section in sections):
                broken.append(f"{path.relative_to(ROOT)}: {found[0]}")
        for number in DECISION.findall(text):
            if not any((ROOT / "docs" / "decisions").glob(f"{number}-*.md")):
                broken.append(f"{path.relative_to(ROOT)}: decision {number}")
    assert cited > 100
    assert broken == []


def test_every_link_leads_somewhere() -> None:
    """Files, and headings within them, as GitHub names those."""
    broken = []
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
            name, _, anchor = target.partition("#")
            document = path.parent / name if name else path
            if not document.exists() or (anchor and anchor not in _anchors(document)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def _tracked() -> list[Path]:
    folders = (
        "bench deploy docs reput tests checkpoints filters overlay readers serving sinks sources"
    )
    found = [ROOT / "pyproject.toml", *ROOT.glob("*.md"), *ROOT.glob("*.py")]
    for folder in (*folders.split(), "store", "streaming", "upkeep", "workload"):
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in found if "target" not in path.parts and "data" not in path.parts]


def test_every_command_that_documents_show_exists() -> None:
    """Sub-commands and flags of each ``reput`` line."""
    root = typer.main.get_command(app)
    texts = [path.read_text("utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    shown = re.findall(r"^(?:\.venv/bin/)?reput ([^#\n]*)", "\n".join(texts), re.M)
    assert len(shown) >= 30
    for line in shown:
        command = root
        words = line.split()
        while hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), line
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
