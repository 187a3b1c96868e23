"""The faults of a soak. Each finds a run, does its harm, and leaves one that goes on.

What must hold at once is checked at once: a run ends only where a fault may end it, and with one
line; a dispatcher that is refused changes nothing and says so; ``verify`` finds what was damaged
and nothing else, and nothing where nothing was.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from reput.store.state.watermark import SLOT_SIZE
from reput.store.state.watermark import USED_SIZE as SLOT_USED_SIZE
from reput.upkeep.verify.difference import Damage
from tests.soak.site import END_SECONDS, TREES, Site, SoakError
from tests.support.childruns import ERROR
from tests.support.file_damage import damage_file
from tests.support.processes import became
from tests.support.prometheus import free_port

STATE = "reput"
LONGEST_PAUSE = 8.0


def _kill(site: Site, part: str) -> str:
    if not site.kill(part):
        return f"there was no {part} yet"
    site.start()
    return "killed"


def kill_the_tree(site: Site, _rng: random.Random) -> str:
    """kill -9 of all processes of a run."""
    return _kill(site, "tree")


def kill_the_driver(site: Site, _rng: random.Random) -> str:
    """kill -9 of the driver alone: its JVM and workers end by themselves, beside the next run."""
    return _kill(site, "driver")


def kill_the_jvm(site: Site, _rng: random.Random) -> str:
    """kill -9 of Spark's JVM: the run ends with a line."""
    return _kill(site, "jvm")


def kill_a_worker(site: Site, rng: random.Random) -> str:
    """kill -9 of one Python process below the driver: the run goes on, or ends with a line."""
    run = site.run
    if not run.kill_part("worker", rng):
        return "there was no worker yet"
    run.may_end = True
    became(lambda: not run.is_alive, 2 + rng.random() * 4)
    return "the run goes on" if run.is_alive else "the run has ended"


def stand_still(site: Site, rng: random.Random) -> str:
    """SIGSTOP for some of the run's processes, and SIGCONT."""
    tree = site.run.tree()
    if not tree:
        return "there was no run"
    kind = rng.choice(("driver", "JVM", "one", "all"))
    chosen = {
        "driver": tree[:1], "JVM": site.run.children("jvm"), "one": [rng.choice(tree)], "all": tree,
    }[kind]  # fmt: skip
    _pause(chosen, rng.random() * LONGEST_PAUSE)
    return kind


def _pause(chosen: list[psutil.Process], seconds: float) -> None:
    try:
        for process in chosen:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
    finally:
        for process in chosen:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def race(site: Site, rng: random.Random) -> str:
    """A second dispatcher beside one that runs, or one that stands still."""
    run = site.run
    if not run.wait_for_progress(END_SECONDS):
        return "the first had not begun"
    stopped = rng.random() < 0.5
    if stopped:
        run.process.send_signal(signal.SIGSTOP)
    try:
        code, _, said = site.command(*site.arguments("--once")[3:])
    finally:
        run.process.send_signal(signal.SIGCONT)
    lines = [line for line in said.splitlines() if line.startswith(ERROR)]
    if code != 1 or len(lines) != 1:
        raise SoakError(f"a second dispatcher ended with {code}: {said[-4000:]}")
    return "refused by one that stood still" if stopped else "refused"


def race_to_start(site: Site, _rng: random.Random) -> str:
    """The run is killed, and two start at once: one of them is refused."""
    site.kill()
    both = [site.start(), site.start(port=free_port())]
    became(lambda: not all(run.is_alive for run in both), 2 * END_SECONDS)
    losers = [run for run in both if not run.is_alive]
    if len(losers) != 1:
        for run in both:
            run.kill()
        raise SoakError(f"{len(losers)} of two dispatchers ended: {[run.stderr for run in both]}")
    if losers[0].wait() != 1:
        raise SoakError(f"the loser did not end with 1: {losers[0].stderr}")
    site.watch(both[1 - both.index(losers[0])])
    return "one was refused"


def damage_spark(site: Site, rng: random.Random) -> str:
    """Spark's checkpoint rots, or is gone, while nobody runs."""
    site.kill()
    files = sorted(path for path in (site.inside / STATE / "spark").rglob("*") if path.is_file())
    found = []
    for _ in range(rng.choice((1, 1, 3))):
        # mostly what Spark reads at a start
        path = rng.choice(files[-8:] if rng.random() < 0.3 else _newest(files, rng))
        if path.exists() and path.stat().st_size:
            found.append(f"{damage_file(rng, path)} of {path.parent.name}/{path.name}")
    site.start()
    return ", ".join(found) or "nothing to damage"


def _newest(files: list[Path], rng: random.Random) -> list[Path]:
    numbered = [path for path in files if path.name.isdigit()]
    newest = sorted(numbered, key=lambda path: int(path.name))[-6:]
    return newest if newest and rng.random() < 0.9 else files or newest


def rot(site: Site, rng: random.Random) -> str:
    """A derived file rots while nobody runs, and ``verify --repair`` cuts it."""
    if rng.random() < 0.5:
        site.kill()
    else:
        site.stop()
    kind = rng.choice((*TREES, "watermark"))
    if kind == "watermark":
        place = _damage_slot(site.inside / STATE / "watermark", rng)
    else:
        files = [
            path for path in (site.inside / kind).rglob("*") if _is_in_log(path, site.log_start)
        ]
        if not files:
            site.start()
            return "there was no file"
        path = rng.choice(sorted(files))
        place = f"{damage_file(rng, path)} of {path.relative_to(site.inside)}"
    code, out, said = site.command(
        "verify", site.store, "--output", site.output, "--repair", "--json"
    )
    found = json.loads(out.splitlines()[-1])["differences"] if out else None
    wrong = {(one["kind"], one["damage"]) for one in found or ()}
    if found is None or code not in (0, 1) or not all(_may_follow(kind, *one) for one in wrong):
        raise SoakError(f"{place}: verify ended with {code}, {wrong}: {said[-4000:]}")
    site.start()
    return f"{place}: {'found' if found else 'nothing was wrong'}"


def _may_follow(rotten: str, kind: str, damage: str) -> bool:
    """Whether damage to a kind of file may be found where another kind is rotten."""
    if rotten == "consumequeue" and kind == "consumequeue_ext":
        return damage != Damage.MISSING  # units that no unit of the queue leads to any more
    # where the newer slot is gone, RocketMQ's checkpoint is ahead of the watermark
    return kind == rotten or (rotten, kind) == ("watermark", "checkpoint")


def _is_in_log(path: Path, log_start: int) -> bool:
    """Whether the log still has all messages of a file: nothing else could heal it."""
    if not path.is_file():
        return False
    if path.parts[-4] == "consumequeue_ext":
        # its units name no message, but are as old as those of the queue's file in that place
        newer = [one for one in path.parent.iterdir() if one.name < path.name]
        return log_start == 0 or len(newer) > 2
    with path.open("rb") as file:
        head = file.read(24)
    at = 16 if path.parent.name == "index" else 0
    return int.from_bytes(head[at : at + 8], "big") >= log_start


def _damage_slot(path: Path, rng: random.Random) -> str:
    """One of the two slots: the other one counts."""
    data = bytearray(path.read_bytes())
    at = rng.choice((0, SLOT_SIZE)) + rng.randrange(SLOT_USED_SIZE - 8)
    data[at : at + 8] = rng.randbytes(8)
    path.write_bytes(data)
    return f"noise at {at} of watermark"


def look(site: Site, _rng: random.Random) -> str:
    """No fault: ``verify`` beside the run, which may meet retention alone."""
    before = site.names()
    code, out, said = site.command("verify", site.store, "--output", site.output, "--json")
    removed = before - site.names()
    if code and not removed:
        raise SoakError(f"verify beside a run ended with {code}: {out[-4000:]} {said[-4000:]}")
    return f"retention removed {len(removed)} files meanwhile" if code else "nothing is wrong"


def fill_the_disk(site: Site, rng: random.Random) -> str:
    """No space is left for some seconds; perhaps the run is killed meanwhile."""
    site.disk.fill(rng.choice((0, 0, 4096, 65536, rng.randrange(1 << 20))))
    try:
        time.sleep(1 + rng.random() * LONGEST_PAUSE)
        if is_killed := rng.random() < 0.3:
            site.kill()
            site.start()
            time.sleep(rng.random() * LONGEST_PAUSE)
    finally:
        site.disk.free()
    return "killed on the full disk" if is_killed else "full"


def retain(site: Site, _rng: random.Random) -> str:
    """The broker removes the log's oldest files."""
    return f"{site.retain()} files"


def kill_the_broker(site: Site, rng: random.Random) -> str:
    """kill -9 of the appender, and another one."""
    site.kill_appender()
    time.sleep(rng.random() * LONGEST_PAUSE)
    site.append()
    return "killed"


def rewind(site: Site, rng: random.Random) -> str:
    """An operator takes the output back to some place that the log still has."""
    site.stop()
    end = site.position
    low = max(site.log_start, end - rng.choice((10_000, 300_000, end)))
    to = rng.randrange(low, end) if low < end else end
    code, out, said = site.command(
        "checkpoints", "rewind", site.store, "--output", site.output, "--to-offset", to, "--apply"
    )
    if code and "retention" not in said:
        raise SoakError(f"a rewind to {to} ended with {code}: {out} {said[-4000:]}")
    site.start()
    return f"from {end} to {to}: {'refused' if code else 'done'}"


def stop_and_start(site: Site, _rng: random.Random) -> str:
    """SIGTERM, as an operator stops a run."""
    code = site.stop()
    site.start()
    return f"ended with {code}"


Fault = Callable[[Site, random.Random], str]
FAULTS: dict[Fault, int] = {
    kill_the_tree: 5, kill_the_driver: 4, kill_the_jvm: 4, kill_a_worker: 4, stand_still: 4,
    race: 2, race_to_start: 2, damage_spark: 3, rot: 5, look: 1, fill_the_disk: 3, retain: 3,
    kill_the_broker: 3, rewind: 2, stop_and_start: 1,
}  # fmt: skip
"""Each with its weight."""


def restart_if_ended(site: Site) -> str:
    """Start a run again that a fault has ended."""
    run = site.run
    if run.is_alive:
        return ""
    code = run.wait()
    if not run.may_end:
        raise SoakError(f"a run ended by itself with {code}: {run.stderr[-4000:]}")
    site.start()
    return f"ended with {code}"
