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
from reput.store.files import ABORT_FILE, VISIBLE_FILE, WATERMARK_FILE
from reput.store.state.ends import drop_ends
from reput.store.state.output import fingerprint
from reput.store.state.storecheckpoint import lower_logics_physical_offset
from reput.store.state.watermark import Watermark
from reput.upkeep.verify.logcomparison import LogComparison
from reput.upkeep.verify.positions import heal_store_checkpoint, rewrite_watermark


def heal(comparison: LogComparison) -> None:
    """Heal all that a comparison has found. Raises OutputError, SyncError."""
    output, state, lowered = comparison.built.output, comparison.state, comparison.replay_from
    drop_ends(state)
    for verifier in comparison.verifiers:
        verifier.remove_strays()
    kinds = {difference.kind for difference in comparison.differences}
    if comparison.store_checkpoint is not None:
        heal_store_checkpoint(output, comparison.store_checkpoint)
    if comparison.ledger.path.name in kinds:
        comparison.ledger.heal()
    if lowered is not None:
        lower_logics_physical_offset(output, lowered)
    watermark = comparison.watermark or _new_watermark(comparison)
    if lowered is not None:
        watermark = watermark.moved_to(lowered)
    # if a kill comes before everything is cut, the next start must clear what lies beyond the
    # lower watermark
    abort = state / ABORT_FILE
    was_cut_short = abort.exists()
    if lowered is not None:
        fsops.replace_file(abort, b"")
    if lowered is not None or WATERMARK_FILE in kinds:
        # a start that was killed may have left an end of the new epoch
        fsops.unlink(state / VISIBLE_FILE)
        rewrite_watermark(state, replace(watermark, epoch=watermark.epoch + 1))
    for verifier in comparison.verifiers:
        verifier.cut()
    if lowered is not None and not was_cut_short:
        fsops.unlink(abort)


def _new_watermark(comparison: LogComparison) -> Watermark:
    """Return the watermark that was lost: the files hold the entries that were compared."""
    last = comparison.last_record_offset
    return Watermark(
        new_store_id(), comparison.scope.end,
        last_record_offset=last, last_record_crc=fingerprint(comparison.log, last),
        last_store_timestamp=comparison.last_store_timestamp,
        index_begin=-1 if comparison.index.begin is None else comparison.index.begin,
    )  # fmt: skip
