"""Positions: how far an output has come, who owns it, and what Spark's checkpoint says.

This package holds code only and needs no JVM. The files live in the output's ``reput`` directory:

    reput/owner.lock      held while a dispatcher runs
    reput/owner.json      who holds it, for the error that the second one gets
    reput/abort           from a run's start to its clean end, as in RocketMQ: if it is there at a
                          start, the files may hold something beyond the watermark
    reput/watermark       the durable position (``store.state.watermark``)
    reput/ends            where the entries end (``store.state.ends``)
    reput/built.json      the settings that decide bytes (``store.state.built``)
    reput/seal.json       checksums of what was found right (``upkeep.verify.seal``)
    reput/quarantine.jsonl   ranges that got no entry (``store.state.ledger``)
    reput/followers/      positions of tables and other followers (``checkpoints.followers``)
    reput/spool/          units on their way from Spark's tasks (``store.runs.spool``)
    reput/rewound-N/      the positions before a rewind (``checkpoints.keptstate``)
    reput/spark/          Spark's checkpoint, unless ``--checkpoint`` names another place
"""
