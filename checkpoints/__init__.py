"""Positions: where a dispatcher stands, who owns an output, what Spark's checkpoint says.

Code only, and no JVM. What it describes lives in the output's ``reput`` directory:

    reput/owner.lock      held while a dispatcher runs
    reput/owner.json      who holds it, for the error that the second one gets
    reput/abort           from a run's start to its clean end, as in RocketMQ: if it is there at a
                          start, something may stand behind the watermark
    reput/watermark       the durable position (``store.state.watermark``)
    reput/built.json      the settings that decide bytes (``store.state.built``)
    reput/quarantine.jsonl   what got no entry (``store.state.ledger``)
    reput/followers/      where tables and other followers stand (``checkpoints.followers``)
    reput/spool/          units on their way from Spark's tasks (``store.runs.spool``)
    reput/spark/          Spark's checkpoint, unless ``--checkpoint`` names another place
"""

from store.state.watermark import STATE_DIRECTORY

__all__ = [
    "ABORT_FILE",
    "FOLLOWERS_DIRECTORY",
    "SPARK_DIRECTORY",
    "SPOOL_DIRECTORY",
    "STATE_DIRECTORY",
]

SPARK_DIRECTORY = "spark"
SPOOL_DIRECTORY = "spool"
ABORT_FILE = "abort"
FOLLOWERS_DIRECTORY = "followers"
