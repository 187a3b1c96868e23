"""``reput expire``: removes derived files whose messages the log no longer holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from reput.cli import options, texts
from reput.cli.printer import Result, Table, printed
from reput.store.config import StoreSettings
from reput.store.errors import UsageError
from reput.upkeep.expiry import expire as expire_output


@printed
@options.with_options(settings=options.output_settings)
def expire(
    store: options.Store,
    settings: StoreSettings,
    output: options.Output = None,
    apply: Annotated[
        bool, options.flag("Remove the files; otherwise they are only shown.", "--apply")
    ] = False,
    remove_unused: Annotated[
        bool,
        options.flag(
            "With `--apply`, remove whole queues without messages as well.", "--remove-unused"
        ),
    ] = False,
) -> Result:
    """Show, or remove, the queue files whose messages the log no longer holds.

    As in RocketMQ, a queue loses its oldest files first, and never its last one.
    """
    if remove_unused and not apply:
        raise UsageError("--remove-unused needs --apply; without it nothing is removed")
    root = output or store
    expiry = expire_output(settings, root, apply=apply, remove_unused=remove_unused)
    size = sum(file.size for file in expiry.files)
    fields = {
        "applied": apply,
        "log_min_offset": expiry.log_min_offset,
        "bytes": size,
        "files": [{**asdict(file), "path": str(file.path)} for file in expiry.files],
        "unused_queues": [asdict(key) for key in expiry.unused_queues],
    }
    rows: list[tuple[object, ...]] = [
        (file.topic, file.queue_id, file.path.relative_to(root), texts.grouped(file.size))
        for file in expiry.files
    ]
    fate = "removed" if remove_unused else "kept" if apply else "would go with --remove-unused"
    rows += [(key.topic, key.queue_id, f"unused queue: {fate}", "") for key in expiry.unused_queues]
    advice = "; nothing was removed, give --apply" if rows and not apply else ""
    line = (
        f"{texts.counted(len(expiry.files), 'file')}, {texts.human_bytes(size)}, "
        f"{texts.counted(len(expiry.unused_queues), 'unused queue')}; the log begins at "
        f"{expiry.log_min_offset}{advice}"
    )
    title, columns = "removed" if apply else "to remove", ("topic", "queue", "file", "bytes")
    return Result(fields, [Table(title, columns, rows), line])
