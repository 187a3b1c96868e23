"""``make mutants``: random faults in all of the product, applied as canaries are.

The changes are those of cosmic-ray's operators, and a statement that is gone. A seed chooses
places, each with one of the changes that are possible there; those of ``equivalent.toml``, which
change nothing, are left out. Each meets the cheap tests that ``coverage.json`` names for its
function; one that survives them meets all tests that ran the function, where a recording of this
tree lies in ``build/coverage``. ``--resume`` leaves out what was caught before; ``--list`` shows
the mutants and runs nothing. It ends with 1 where fewer than ``--score`` percent are caught.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from filelock import FileLock

from tests.canaries import ROOT, Canary, read_equivalents
from tests.canaries.__main__ import PLACE, run
from tests.canaries.choices import Chooser, exists, product_files, read_choices
from tests.canaries.recording import all_recorded
from tests.support.seeds import choose_seed

NOTHING = ("core/VariableReplacer", "core/VariableInserter")
"""Operators that need arguments."""
DECLARATION = "@dataclass("
"""A class whose objects may be changed, or have a dictionary, does the same."""
TIMEOUT = "--timeout=120"
MAX_FILE_BYTES = 4 << 30
MAX_CPU_SECONDS = 300


def places(text: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Line and column -> the operators that change something there, each with its ordinal."""
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    tree = get_ast(text)
    for name in operator_names():
        if name in NOTHING:
            continue
        operator = get_operator(name)()
        positions = (at for node in ast_nodes(tree) for at in operator.mutation_positions(node))
        for ordinal, (start, _) in enumerate(positions):
            found.setdefault(start, []).append((name, ordinal))
    return found


def statements(text: str) -> dict[tuple[int, int], ast.stmt]:
    """Line and column -> a statement in a function that may go; none that only logs, or returns
    what its end would."""
    kinds = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Return)
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    ends = [function.body[-1] for function in functions]
    return {
        (one.lineno, one.col_offset): one
        for one in itertools.chain.from_iterable(map(ast.walk, functions))
        if isinstance(one, kinds)
        and not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        and not ast.unparse(one).startswith("logger.")
        and not (one in ends and ast.unparse(one) in ("return", "return None"))
    }


def without(text: str, gone: ast.stmt) -> str:
    """The text with ``pass`` in the place of a statement."""
    lines = text.encode().splitlines(keepends=True)
    assert gone.end_lineno is not None
    before, after = lines[: gone.lineno - 1], lines[gone.end_lineno :]
    start, end = lines[gone.lineno - 1][: gone.col_offset], lines[gone.end_lineno - 1]
    return b"".join([*before, start, b"pass", end[gone.end_col_offset :], *after]).decode()


def is_mutant(text: str, other: str) -> bool:
    """Whether it is a program that differs in more than annotations, which nobody evaluates."""
    dumps = []
    for source in (text, other):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return False
        for node in ast.walk(tree):
            if isinstance(node, ast.arg | ast.AnnAssign):
                node.annotation = ast.Constant(None)
            elif isinstance(node, ast.FunctionDef):
                node.returns = None
        dumps.append(ast.dump(tree))
    return dumps[0] != dumps[1]


def change_of(text: str, other: str) -> tuple[str, str]:
    """The first line that differs, as it is and with the fault, without indentation."""
    pairs = zip(text.splitlines(), other.splitlines(), strict=False)
    return next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))


@dataclass
class Module:
    """A file of the product with its places that are not drawn yet."""

    text: str
    changes: dict[tuple[int, int], list[tuple[str, int]]]
    removals: dict[tuple[int, int], ast.stmt]
    left: list[tuple[tuple[int, int], bool]]
    """Line and column, and whether the statement there goes, in a drawn order."""

    @classmethod
    def drawn(cls, file: str, rng: random.Random) -> Self:
        """Read it; which takes a second, so that only modules of the sample are read."""
        text = (ROOT / file).read_text("utf-8")
        changes, removals = places(text), statements(text)
        left = [*((at, True) for at in sorted(removals)), *((at, False) for at in sorted(changes))]
        rng.shuffle(left)
        return cls(text, changes, removals, left)

    def mutant(self, rng: random.Random) -> tuple[int, str, str] | None:
        """Line, operator and text of the next one; None where its place allows none."""
        at, removed = self.left.pop()
        line = self.text.splitlines()[at[0] - 1].strip()
        if line.startswith(DECLARATION):
            return None
        if removed:
            operator, other = "gone", without(self.text, self.removals[at])
        else:
            operator, ordinal = rng.choice(self.changes[at])
            found = mutate_code(self.text, get_operator(operator)(), ordinal)
            other = self.text if found is None else found
        if not is_mutant(self.text, other):
            return None
        return at[0], operator.removeprefix("core/"), other


def mutants(count: int, seed: int, only: str = "") -> list[Canary]:
    """So many, the same for the same seed and tree; the first ones are those of a lower count. A
    module's share is that of its lines."""
    rng = random.Random(seed)
    files = [file for file in product_files() if file.startswith(only)]
    lines = [(ROOT / file).read_bytes().count(b"\n") for file in files]
    nothing = {(one.file, one.line, one.change) for one in read_equivalents()}
    chooser = Chooser.of(read_choices())
    modules: dict[str, Module] = {}
    found: list[Canary] = []
    while len(found) < count:
        [file] = rng.choices(files, lines)
        if file not in modules:
            modules[file] = Module.drawn(file, random.Random(f"{seed} {file}"))
        module = modules[file]
        drawn = module.mutant(rng) if module.left else None
        if drawn is None:
            continue
        line, operator, other = drawn
        change = change_of(module.text, other)
        if (file, *change) not in nothing:
            title = f"{file}:{line} {operator}: {change[0]} => {change[1]}"
            tests = chooser.tests(file, line)
            found.append(Canary(title, "", file, module.text, other, (TIMEOUT, *tests)))
    return found


def widened(survivors: Sequence[Canary]) -> list[Canary]:
    """The survivors that further tests of a recording can meet, with these tests."""
    functions, _ = all_recorded()
    chooser = Chooser.of(
        {file: {n: sorted(t) for n, t in of.items()} for file, of in functions.items()}
    )
    found = []
    for one in survivors:
        line = int(one.name.partition(" ")[0].rpartition(":")[2])
        more = [
            test for test in chooser.every(one.file, line) if exists(test) and test not in one.tests
        ]
        if more:
            found.append(replace(one, tests=(TIMEOUT, *more)))
    return found


def main() -> int:
    """Run them and print the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.canaries.mutants", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=150)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="files whose path begins so")
    parser.add_argument("--score", type=int, default=85)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    seed = choose_seed() if arguments.seed is None else arguments.seed
    chosen = mutants(arguments.count, seed, arguments.only)
    print(f"seed={seed}", flush=True)
    if arguments.list:
        print(*(mutant.name for mutant in chosen), sep="\n")
        return 0
    # a wrong number may mean a huge file, or a loop that no signal ends
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    # the tests of a mutant make the same choices as those of a resumed run
    os.environ.setdefault("REPUT_TEST_SEED", str(seed))
    PLACE.mkdir(parents=True, exist_ok=True)
    with FileLock(PLACE / "lock", timeout=0):
        survivors = run(chosen, PLACE / "mutants.json", resume=arguments.resume)
        again = widened(survivors)
        caught_now = len(again) - len(run(again, PLACE / "widened.json", resume=False))
    survived = len(survivors) - caught_now
    score = 100 * (len(chosen) - survived) / max(len(chosen), 1)
    print(f"seed={seed} mutants={len(chosen)} survived={survived} score={score:.0f} %")
    return 1 if score < arguments.score else 0


if __name__ == "__main__":
    sys.exit(main())
