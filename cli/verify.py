"""``reput verify``: compares all that was built with the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reput.cli import options, render, severalstores, texts
from reput.cli.printer import Part, Record, Result, printed
from reput.store.commandline import command_line
from reput.store.config import NO_PROPERTY_FILE, StoreSettings
from reput.store.errors import ReputError, UsageError
from reput.store.files import STATE_DIRECTORY, WATERMARK_FILE
from reput.store.state.built import settings_of
from reput.upkeep.entryfields import ENTRY_DTYPES, fields_text
from reput.upkeep.verify.difference import Damage, Difference
from reput.upkeep.verify.logdamage import damage_advice
from reput.upkeep.verify.repairplan import planned_changes

if TYPE_CHECKING:
    from reput.upkeep.verify.run import Verification

SHOWN_DIFFERENCES = 200
REPAIRED = "cut what differs; reput run writes it again, and no broker may start here before"


@printed
@options.with_options(flags=options.build_flags)
def verify(
    store: severalstores.OneStore = None,
    output: options.Output = None,
    repair: Annotated[
        bool, options.flag("Cut what differs; the next `reput run` writes it again.", "--repair")
    ] = False,
    dry_run: Annotated[
        bool,
        options.flag("With `--repair`: say what it would change, and change nothing.", "--dry-run"),
    ] = False,
    sealed: Annotated[
        bool,
        options.flag(
            "Seal what is found right, and read only the log beyond the last seal: sealed log "
            "files are known by length, times and inode, what follows from them by checksums. If "
            "any of it has changed, or anything differs, read the whole log.",
            "--sealed",
        ),
    ] = False,
    stores: severalstores.Stores = None,
    outputs: severalstores.Outputs = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    *,
    flags: dict[str, Any],
) -> Iterator[Result]:
    """Compare queues and index up to the watermark with the log; exit code 1 if any differs, or
    the log is damaged where it was sound.

    Reads only, unless `--repair` or `--sealed` is given. An output keeps the settings that it was
    built with; give `--on-queue-gap`, `--verify-crc` and `--index-tags` only for one of an older
    reput. With `--stores` several stores are verified one after the other; one that fails is said,
    and the others are verified.
    """
    if dry_run and not repair:
        raise UsageError("--dry-run is for --repair; without either, verify only reads")
    if dry_run and sealed:
        raise UsageError("--dry-run changes nothing, and --sealed writes a seal; leave one out")
    several = severalstores.several_stores(store, stores, outputs)
    if several is not None:
        several.refuse({"output": output, "broker_conf": broker_conf})
    root = store or Path()
    roots = {root: output or root} if several is None else several.find()
    mode = Mode(repair, dry_run, sealed)

    def verified(root: Path, place: Path) -> tuple[StoreSettings, Verification]:
        given = options.store_settings(root, broker_conf, commitlog_file_size)
        settings = settings_of(place, given, flags)
        return settings, _verified(settings, place, mode)

    if several is None:
        settings, verification = verified(root, roots[root])
        parts = _parts(verification, settings, roots[root], mode)
        yield Result(_json_fields(verification, mode), parts, mode.exit_code(verification))
        return
    done: dict[Path, Verification | ReputError] = {}
    for root, place in roots.items():
        try:
            done[root] = verified(root, place)[1]
        except (ReputError, OSError) as error:
            done[root] = render.error_of_store(error)
    yield _result_of_all(roots, done, mode)
    severalstores.raise_failures(
        {
            root: str(outcome) if isinstance(outcome, ReputError) else None
            for root, outcome in done.items()
        }
    )


@dataclass(frozen=True, slots=True)
class Mode:
    """The ways in which a verification does more than to compare."""

    repair: bool
    dry_run: bool
    sealed: bool

    @property
    def repairs(self) -> bool:
        """Whether differences are repaired."""
        return self.repair and not self.dry_run

    def exit_code(self, verification: Verification) -> int:
        """Return 1 where a store is not as it should be."""
        return int(bool(verification.damage or (verification.differences and not self.repairs)))


def _verified(settings: StoreSettings, root: Path, mode: Mode) -> Verification:
    from reput.upkeep.verify.run import verify as verify_output  # noqa: PLC0415

    with render.ProgressDisplay("verifying") as display:
        return verify_output(settings, root, show=display, **asdict(mode))


def _result_of_all(
    roots: Mapping[Path, Path], done: Mapping[Path, Verification | ReputError], mode: Mode
) -> Result:
    columns = ("store", "queues", "units", "index entries", "damage", "differences")
    results, code = [], 0
    for root, outcome in done.items():
        row: severalstores.StoreRow
        if isinstance(outcome, ReputError):
            row = (root, roots[root], str(outcome), {}, ("unknown",) * (len(columns) - 1))
        else:
            counts = outcome.queues, outcome.units, outcome.index_entries
            cells = map(texts.grouped, (*counts, len(outcome.damage), len(outcome.differences)))
            row = (root, roots[root], None, _json_fields(outcome, mode), tuple(cells))
            code = max(code, mode.exit_code(outcome))
        results.append(row)
    return severalstores.result(columns, results, exit_code=code)


def _json_fields(verification: Verification, mode: Mode) -> dict[str, Any]:
    changes = [
        asdict(change)
        for change in planned_changes(verification.differences, verification.replay_from)
    ]
    planned = {"changes": changes} if mode.dry_run else {}
    return {**asdict(verification), "repaired": mode.repairs, **planned}


def _parts(
    verification: Verification, settings: StoreSettings, output: Path, mode: Mode
) -> Iterator[Part]:
    differing = len(verification.differences)
    for difference in verification.differences[:SHOWN_DIFFERENCES]:
        sides = {
            "log says": _fields(difference, difference.expected),
            "found": _fields(difference, difference.found),
        }
        yield Record(_place(difference), sides, is_listed=True)
    for damage in verification.damage[:SHOWN_DIFFERENCES]:
        yield damage.line
    yield (
        f"{texts.counted(verification.queues, 'queue')}, "
        f"{texts.counted(verification.units, 'unit')}, "
        f"{texts.counted(verification.index_entries, 'index entry', 'index entries')} compared "
        f"with the log [{verification.log_start}, {verification.log_end}): "
        f"{texts.counted(differing, 'difference') if differing else 'no differences'}"
        + (f", the first {SHOWN_DIFFERENCES} shown" if differing > SHOWN_DIFFERENCES else "")
    )
    if verification.seal_end > verification.log_start:
        yield (
            f"what follows from [{verification.log_start}, {verification.seal_end}) was compared "
            "by checksums, and this part of the log was not read"
        )
    if verification.damage:
        damages = len(verification.damage)
        yield (
            f"{texts.counted(damages, 'damaged range')} of the log"
            + (f", the first {SHOWN_DIFFERENCES} shown" if damages > SHOWN_DIFFERENCES else "")
            + f": {texts.counted(verification.unseen_units, 'unit')} and "
            f"{texts.counted(verification.unseen_index_entries, 'index entry', 'index entries')} "
            "of messages there could not be compared; " + damage_advice(settings, output)
        )
    elif differing:
        if mode.dry_run:
            yield from _changes(verification)
        yield from (REPAIRED,) if mode.repairs else _advice(settings, output)


def _changes(verification: Verification) -> Iterator[str]:
    changes = list(planned_changes(verification.differences, verification.replay_from))
    for step in changes[:SHOWN_DIFFERENCES]:
        yield f"{step.place}: {step.change}"
    more = len(changes) - SHOWN_DIFFERENCES
    replay = verification.replay_from
    yield (
        "a dry run: nothing was changed; "
        + (f"without --dry-run {more:,} places more would change, too; " if more > 0 else "")
        + (
            "a repair leaves the watermark where it is"
            if replay is None
            else f"a repair lowers the watermark to {replay}, and the next run dispatches "
            f"{texts.human_bytes(verification.log_end - replay)} again"
        )
    )


def _advice(settings: StoreSettings, output: Path) -> Iterator[str]:
    """Yield what to do about differences, a line each."""
    if settings.property_file is None:
        yield f"{NO_PROPERTY_FILE}, were assumed; if the broker has others, give --broker-conf"
    place = settings.root, output
    if not (output / STATE_DIRECTORY / WATERMARK_FILE).exists():
        yield f"to repair: {command_line('rebuild', *place)} builds them anew"
        return
    yield (
        f"to repair: {command_line('verify', *place, '--repair')} cuts what differs, then "
        f"{command_line('run', *place, '--once')} writes it again"
    )


def _place(difference: Difference) -> str:
    entry = (
        f"{difference.damage} {difference.entry}" if difference.count else f"{difference.damage}"
    )
    several = f", {difference.count} one after the other" if difference.count > 1 else ""
    message = difference.physical_offset
    log = "" if message is None or message < 0 else f", message at physical offset {message}"
    return f"{entry} in {difference.path}, byte {difference.position}{several}{log}"


def _fields(difference: Difference, values: tuple[int | str, ...] | None) -> str:
    if values is None:
        return "nothing"
    is_entry = difference.damage in (Damage.UNIT, Damage.ENTRY) and difference.kind in ENTRY_DTYPES
    names = (ENTRY_DTYPES[difference.kind].names or ()) if is_entry else ()
    if not names and len(values) == 1:
        return f"{values[0]} bytes"
    if len(names) != len(values):
        return " ".join(map(str, values))
    return fields_text(dict(zip(names, values, strict=True)))
