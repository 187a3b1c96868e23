"""The repair of an output, from the findings of a comparison.

It removes what no message needs, lowers the watermark to the first message that lacks a unit or an
entry, then cuts damaged files: the next run dispatches from there and finds everything else in
whole files. This order keeps every state safe: whenever the repair stops, all missing entries lie
beyond the watermark, and every entry beyond the watermark that is not written over is gone.
"""

from __future__ import annotations

from dataclasses import replace

from reput.checkpoints.watermark import new_store_id
from reput.store import fsops
from reput.store.files import ABORT_FILE, WATERMARK_FILE
from reput.store.state.ends import drop_ends
from reput.store.state.output import fingerprint
from reput.store.state.storecheckpoint import lower_logics_physical_offset
from reput.store.state.watermark import Watermark
from reput.upkeep.verify.logcomparison import LogComparison
from reput.upkeep.verify.positions import heal_store_checkpoint, rewrite_watermark


def heal(found: LogComparison) -> None:
    """Heal all that a comparison has found. Raises OutputError, SyncError."""
    output, state, lowered = found.built.output, found.state, found.replay_from
    drop_ends(state)
    for verifier in found.verifiers:
        verifier.remove_strays()
    kinds = {difference.kind for difference in found.differences}
    if found.store_checkpoint is not None:
        heal_store_checkpoint(output, found.store_checkpoint)
    if found.ledger.path.name in kinds:
        found.ledger.heal()
    if lowered is not None:
        lower_logics_physical_offset(output, lowered)
    watermark = found.watermark or _new_watermark(found)
    if lowered is not None:
        watermark = watermark.moved_to(lowered)
    # if a kill comes before everything is cut, the next start must clear what lies beyond the
    # lower watermark
    abort = state / ABORT_FILE
    was_cut_short = abort.exists()
    if lowered is not None:
        fsops.replace_file(abort, b"")
    if lowered is not None or WATERMARK_FILE in kinds:
        rewrite_watermark(state, replace(watermark, epoch=watermark.epoch + 1))
    for verifier in found.verifiers:
        verifier.cut()
    if lowered is not None and not was_cut_short:
        fsops.unlink(abort)


def _new_watermark(found: LogComparison) -> Watermark:
    """Return the watermark that was lost: the files hold the entries that were compared."""
    last = found.last_record_offset
    return Watermark(
        new_store_id(), found.scope.end,
        last_record_offset=last, last_record_crc=fingerprint(found.log, last),
        last_store_timestamp=found.newest_store_timestamp,
        index_begin=-1 if found.index.begin is None else found.index.begin,
    )  # fmt: skip
