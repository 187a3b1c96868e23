"""Examples of every command, which its ``--help`` and its manual page end with."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "run": (
        "run /data/store --output /data/queues",
        "run /data/store --output /data/queues --once --json",
        "run --stores '/data/broker-*' --outputs /data/queues",
    ),
    "serve": ("serve /data/store --listen 127.0.0.1:9876",),
    "status": (
        "status /data/store --output /data/queues",
        "status --stores '/data/broker-*' --outputs /data/queues",
    ),
    "doctor": ("doctor /data/store --output /data/queues",),
    "top": (
        "top /data/store --output /data/queues",
        "top /data/store --output /data/queues --metrics 9464",
    ),
    "expire": ("expire /data/store --output /data/queues",),
    "verify": ("verify /data/store --output /data/queues",),
    "get": ("get /data/store Orders 0 1042",),
    "tail": ("tail /data/store Orders -n 20",),
    "query": ("query /data/store Orders --key order-7",),
    "trace": ("trace /data/store 7F000001000018B4AAC216C7A1F00000",),
    "search-time": ("search-time /data/store Orders 0 2026-01-31T12:00:00Z",),
    "lag": ("lag /data/store --group billing",),
    "sql": ('sql /data/store "select topic, count(*) from messages group by topic"',),
    "export": ("export /data/store /data/parquet",),
    "diff": ("diff /data/store /data/queues",),
    "shadow": ("shadow /data/store --output /data/shadow",),
    "rebuild": ("rebuild /data/store --output /data/queues",),
    "produce": (
        "produce /tmp/store --count 100000",
        "produce /tmp/store --rate 1000 --seconds 60",
    ),
    "demo": ("demo",),
    "prepare": ("prepare",),
    "table compact": (
        "table compact /data/messages",
        "table compact lake.sales.messages --iceberg-config catalogs.toml",
    ),
    "table expire": (
        "table expire lake.sales.messages --iceberg-config catalogs.toml --keep-snapshots 10",
    ),
    "inspect record": ("inspect record /data/store 1073741824",),
    "inspect queue": ("inspect queue /data/store Orders 0",),
    "inspect checkpoint": ("inspect checkpoint /data/store",),
    "checkpoints list": ("checkpoints list /data/store --output /data/queues",),
    "checkpoints show": ("checkpoints show /data/store 17 --output /data/queues",),
    "checkpoints verify": ("checkpoints verify /data/store --output /data/queues",),
    "checkpoints rewind": (
        "checkpoints rewind /data/store --output /data/queues --to-batch 17",
        "checkpoints rewind /data/store --output /data/queues --to-batch 17 --apply",
    ),
    "checkpoints prune": ("checkpoints prune /data/store --output /data/queues",),
    "config show": ("config show run /data/store --once",),
    "groups list": ("groups list /data/store",),
    "groups show": ("groups show /data/store billing",),
    "groups reset": (
        "groups reset /data/store billing --topic Orders --earliest",
        "groups reset /data/store billing --topic Orders --earliest --apply",
    ),
    "groups skip": ("groups skip /data/store billing",),
    "groups clone": ("groups clone /data/store billing billing-2",),
    "overlay status": ("overlay status /data/queues",),
    "overlay export": ("overlay export /data/queues --group billing",),
    "overlay drain": (
        "overlay drain /data/queues --broker 127.0.0.1:10911",
        "overlay drain /data/queues --broker 127.0.0.1:10911 --apply",
    ),
    "dlq list": ("dlq list /data/queues --group billing",),
    "dlq show": ("dlq show /data/queues billing 0",),
    "dlq resend": (
        "dlq resend /data/queues billing --offset 0",
        "dlq resend /data/queues billing --all --apply",
    ),
    "overlay handover": ("overlay handover /data/queues /data/handover --store /data/store",),
}
"""A command's name -> the words after ``reput`` of one or two calls."""


def epilog(name: str) -> str:
    """Return a command's examples in markdown, a paragraph each; empty where there are none."""
    return "\n\n".join(f"* `reput {words}`" for words in EXAMPLES.get(name, ()))
