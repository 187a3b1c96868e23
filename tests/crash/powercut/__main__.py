"""``make power-cut N=1000``: runs that many cases, and prints a table of them.

The results are in build/power-cut/. A run that was stopped goes on if it is given its seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.crash.powercut.machine import FILE_SYSTEMS, REPOSITORY, Case, boot, is_installed
from tests.support.seeds import choose_seed

CASES_PER_BOOT = 50


def main() -> int:
    """Run the cases; return the exit code: 1 if any case has a fault, 2 without a kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--images", type=int, default=30, help="images of a run with noted writes")
    options = parser.parse_args()
    if not is_installed():
        print("no user-mode Linux: deploy/install-uml.sh installs it, or says why not")
        return 2
    seed = choose_seed() if options.seed is None else options.seed
    path = REPOSITORY / "build" / "power-cut" / f"{seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    results = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    done = {result["number"] for result in results}
    print(f"seed={seed} cases={options.count} done={len(done)}", flush=True)
    with path.open("a", encoding="utf-8") as file:
        for cases in _boots([Case.of(n) for n in range(options.count) if n not in done]):
            with tempfile.TemporaryDirectory() as directory:
                for result in boot(cases, seed, Path(directory), options.images):
                    results.append(result)
                    file.write(json.dumps(result) + "\n")
                    file.flush()
                    if result["faults"]:
                        print(f"case {result['number']}: {result['faults']}", flush=True)
            print(f"cases={len(results)}", flush=True)
    return _table(results)


def _boots(cases: list[Case]) -> list[list[Case]]:
    found = []
    for file_system in FILE_SYSTEMS:
        own = [case for case in cases if case.file_system == file_system]
        found += [own[at : at + CASES_PER_BOOT] for at in range(0, len(own), CASES_PER_BOOT)]
    return found


def _table(results: list[dict[str, object]]) -> int:
    cases, images, faulty = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), 0
    for result in results:
        case = Case.of(int(str(result["number"])))
        key = case.file_system, case.mode, case.kind
        cases[key] += 1
        images[key] += int(str(result["images"]))
        faulty += bool(result["faults"])
    for key in sorted(cases):
        print(f"{' '.join(f'{part:10}' for part in key)} cases={cases[key]} images={images[key]}")
    print(f"cases={len(results)} images={images.total()} with faults={faulty}")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
