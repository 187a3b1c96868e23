"""Write the tables that follow from code and from the benchmark's results, and the results' picture
(``make docs``); tests compare."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

import bench.page
import bench.picture
import bench.report
import docs.screenshot
import reput.store.rows.rowschema
from reput.cli import app
from reput.sources.commitlogoptions import COMMIT_LOG_OPTIONS
from reput.sources.options import Option
from reput.sources.queueoptions import CONSUME_QUEUE_OPTIONS
from reput.store.index import indexfile
from reput.store.log import innerbatch, record
from reput.store.queue import batchconsumequeue, consumequeue, consumequeueext
from reput.store.state import storecheckpoint, visible, watermark
from reput.upkeep.watch.series import PREFIX, SERIES

ROOT = Path(__file__).parent.parent
LAYOUT = re.compile(r"^OFFSET  SIZE  FIELD.*\n((?:[\d+BS ]{6}  [\dBSn ]{4}  .+\n?)+)", re.M)
"""A record's table of fields in the docstring of its module, in columns of fixed width."""

PROMETHEUS_RULE = """# Written by `make docs` from deploy/prometheus/alerts.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: reput
  labels: {app.kubernetes.io/name: reput}
spec:
"""


def source_options(table: tuple[Option, ...]) -> str:
    """The options of a data source."""
    lines = ["| option | default | for | what |", "|---|---|---|---|"]
    for option in table:
        default = f"`{option.default}`" if option.default else ""
        lines.append(f"| `{option.key}` | {default} | {option.scope} | {option.doc} |")
    return "\n".join(lines)


def command_options(name: str) -> str:
    """The options of a command; of one in a group, ``name`` is both words."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.get_command(None, word)
    lines = ["| flag | default | what |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name == "help":
            continue
        default = getattr(parameter.default, "value", parameter.default)
        shown = "" if default in (None, False) or callable(default) else f"`{default}`"
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        lines.append(f"| {names} | {shown} | {parameter.help} |")
    return "\n".join(lines)


def metrics() -> str:
    """The series of a run's metrics."""
    lines = ["| series | type | labels | meaning |", "|---|---|---|---|"]
    for one in SERIES:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{PREFIX}{one.name}` | {one.kind} | {labels} | {one.meaning} |")
    return "\n".join(lines)


def prometheus_rule() -> str:
    """The alerts as the Prometheus operator takes them."""
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8")
    groups = alerts[alerts.index("groups:") :]
    return PROMETHEUS_RULE + "".join(f"  {line}" for line in groups.splitlines(keepends=True))


def files() -> dict[str, str]:
    """Path -> text of the files that are generated as a whole."""
    return {
        "deploy/kubernetes/prometheusrule.yml": prometheus_rule(),
        "docs/top.svg": docs.screenshot.picture(),
    }


def row_columns() -> str:
    """The public schema, as the module that makes it documents it."""
    found = re.search(
        r"^\| column.*?(?=\n\n)", reput.store.rows.rowschema.__doc__ or "", re.M | re.S
    )
    if found is None:
        raise ValueError("reput.store.rows.rowschema has no table of columns")
    return found[0]


def layout(module: ModuleType, number: int = 0) -> Callable[[], str]:
    """The fields of a record, as the module that reads and writes it documents them."""

    def table() -> str:
        lines = ["| OFFSET | SIZE | FIELD |", "|---|---|---|"]
        for row in LAYOUT.findall(module.__doc__ or "")[number].splitlines():
            offset, size, field = row[:6].strip(), row[8:12].strip(), row[14:].replace("``", "`")
            if offset or size:
                lines.append(f"| {offset} | {size} | {field} |")
            else:
                lines[-1] = f"{lines[-1].removesuffix(' |')} {field.strip()} |"
        return "\n".join(lines)

    return table


TABLES = {
    "docs/formats.md": {
        "record": layout(record),
        "inner message": layout(innerbatch),
        "consume queue unit": layout(consumequeue),
        "ext unit": layout(consumequeueext),
        "batch queue unit": layout(batchconsumequeue),
        "index header": layout(indexfile),
        "index entry": layout(indexfile, 1),
        "checkpoint": layout(storecheckpoint),
        "watermark": layout(watermark),
        "visible": layout(visible),
    },
    "docs/metrics.md": {"series": metrics},
    "docs/repair.md": {"rewind options": lambda: command_options("checkpoints rewind")},
    "docs/reference/run.md": {"run options": lambda: command_options("run")},
    "docs/reference/sources.md": {
        "row columns": row_columns,
        "source options": lambda: source_options(COMMIT_LOG_OPTIONS),
        "queue source options": lambda: source_options(CONSUME_QUEUE_OPTIONS),
    },
    "docs/serving.md": {"serve options": lambda: command_options("serve")},
    "docs/performance.md": {"rows": bench.page.all_rows},
    "README.md": {"measured": bench.page.readme_table},
}
"""Page -> name of a table -> what writes it."""


def generated(page: str, text: str) -> str:
    """``text`` of a page with every generated table as it should be."""
    for name, make in TABLES[page].items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"{page} has no place for {name}")
        text = f"{head}{begin}\n{make()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for page in TABLES:
        path = ROOT / page
        path.write_text(generated(page, path.read_text("utf-8")), "utf-8")
    for name, text in files().items():
        (ROOT / name).write_text(text, "utf-8")
    results = bench.page.RESULTS
    newest = bench.report.read_runs(results)[-1]["about"]
    bench.picture.plot(ROOT / "docs/bench.svg", newest, bench.report.read_rows(results))
