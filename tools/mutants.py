"""Faults put into the papers' rules on purpose: the tests of their worked examples must fail.

    python tools/mutants.py             # one line for each fault; exit status 1 if one survives

Each fault replaces a piece of one file in a copy of the package, and runs the tests named beside
it. A piece that is not in its file exactly once is an error: the fault is to be written anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: what of the paper it breaks, where, and the tests that notice it."""

    breaks: str
    file: str
    right: str
    wrong: str
    tests: str


PLACE = "policy/width/place.py"
FLOTILLA = "policy/width/flotilla.py"
GROUPING = "policy/pack/grouping.py"
OF_FLOTILLA = "tests/policy/width/test_flotilla.py"
OF_GROUPING = "tests/policy/pack/test_grouping.py"
OF_STEADY = "tests/policy/elastic/test_steady.py"
OF_DOUBLING = "tests/policy/width/test_doubling.py"
OF_MILP = "tests/policy/elastic/test_milp.py"

MUTANTS = (
    Mutant(
        "FLEET, algorithm 3: widths that fill whole nodes come first",
        PLACE,
        "if width % per_node == 0:",
        "if False:",
        f"{OF_FLOTILLA}::test_places",
    ),
    Mutant(
        "FLEET, algorithm 3: pairs that fill nodes together",
        PLACE,
        "waiting.get(-width % per_node)",
        "waiting.get(None)",
        f"{OF_FLOTILLA}::test_places",
    ),
    Mutant(
        "FLEET, algorithm 3: the best order of the rest",
        PLACE,
        "return min(orders, key=spread_of)",
        "return next(orders)",
        f"{OF_FLOTILLA}::test_places",
    ),
    Mutant(
        "FLEET, eq. 4: nodes of a lane over its slots",
        PLACE,
        "_nodes(p.start, p.stop, per_node) / len(p)",
        "_nodes(p.start, p.stop, per_node)",
        f"{OF_FLOTILLA}::test_places",
    ),
    Mutant(
        "FLEET, algorithm 1: a new flotilla where fewer than alpha are busy",
        FLOTILLA,
        ">= self.alpha * len(mine)",
        ">= 0.99 * len(mine)",
        f"{OF_FLOTILLA}::test_a_new_flotilla_where_fewer_slots_than_alpha_are_busy",
    ),
    Mutant(
        "FLEET, algorithm 2: paces differ by delta at most",
        FLOTILLA,
        "if trial is None or gap > near:",
        "if trial is None:",
        f"{OF_FLOTILLA}::test_delta_is_the_greatest_difference_of_paces",
    ),
    Mutant(
        "FLEET, algorithm 2: the paper's delta",
        FLOTILLA,
        "NEAR = 20 / 176",
        "NEAR = 40 / 176",
        f"{OF_FLOTILLA}::test_paces_differ_by_the_papers_share_at_most",
    ),
    Mutant(
        "FLEET, appendix B.3: M_t by the fastest and the slowest model",
        "profile/fleet.py",
        "ceil(max(alone) / min(alone))",
        "1",
        "tests/profile/test_fleet.py::test_widths_to_profile",
    ),
    Mutant(
        "FLEET, appendix B.3: M_t is two nodes at least",
        "profile/fleet.py",
        ", 2 * per_node)\n",
        ", per_node)\n",
        "tests/profile/test_fleet.py::test_widths_to_profile",
    ),
    Mutant(
        "Capes, eq. 6: seconds saved, by the slot",
        "policy/width/doubling.py",
        "return (ask.seconds(rung + 1) - ask.seconds(rung)) / ask.step(rung)",
        "return ask.seconds(rung + 1) - ask.seconds(rung)",
        f"{OF_DOUBLING}::test_what_is_saved_counts_by_the_slot",
    ),
    Mutant(
        "Pack, kNN: the distance of two values in order",
        GROUPING,
        "return abs(a - b)",
        "return int(a != b)",
        f"{OF_GROUPING}::test_distance_is_that_of_the_papers_example",
    ),
    Mutant(
        "Pack, kNN: L1, as in the paper's example",
        GROUPING,
        "return sum(_apart(a, b) for a, b in zip(one, other, strict=True))",
        "return sum(_apart(a, b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5",
        f"{OF_GROUPING}::test_distance_is_that_of_the_papers_example",
    ),
    Mutant(
        "Pack, kNN: the nearest first",
        GROUPING,
        "key=lambda i: (far[i], i)",
        "key=lambda i: (-far[i], i)",
        f"{OF_GROUPING}::test_the_nearest_are_taken_first",
    ),
    Mutant(
        "BFTrainer, eq. 10: M is twice the nodes and one",
        "policy/elastic/milp.py",
        "2 * nodes + 1",
        "nodes + 1",
        f"{OF_MILP}::test_the_papers_big_m_forbids_to_change_by_more_than_half_of_the_nodes",
    ),
    Mutant(
        "BFTrainer, eq. 16: rescaling costs the present rate",
        "policy/elastic/table.py",
        "(up * rate)",
        "(0.0 * rate)",
        "tests/policy/elastic/test_knapsack.py::test_gains_are_those_of_equation_16",
    ),
    Mutant(
        "BFTrainer: equal trials exchange no slots",
        "policy/elastic/knapsack.py",
        "counts[pair] = straight",
        "pass",
        f"{OF_STEADY}::test_equal_trials_exchange_no_slots_for_nothing",
    ),
    Mutant(
        "BFTrainer: what is best within the hysteresis stays",
        "policy/elastic/elastic.py",
        "max(rule.hysteresis, LEAST)",
        "LEAST",
        f"{OF_STEADY}::test_without_hysteresis_a_little_noise_moves_slots",
    ),
    Mutant(
        "BFTrainer: the forward time is learned from departures",
        "policy/elastic/objective.py",
        "/ (1 + departures)",
        "",
        f"{OF_STEADY}::test_the_forward_time_is_the_mean_time_between_departures",
    ),
)


def survivors() -> Iterator[tuple[Mutant, bool]]:
    """Each fault, and whether its tests pass all the same."""
    with TemporaryDirectory() as folder:
        package = Path(folder) / "shoal"
        shutil.copytree(
            ROOT / "shoal", package, ignore=shutil.ignore_patterns("__pycache__")
        )
        for mutant in MUTANTS:
            path = package / mutant.file
            text = path.read_text()
            path.write_text(broken(text, mutant))
            yield mutant, passes(mutant.tests, folder)
            path.write_text(text)


def broken(text: str, mutant: Mutant) -> str:
    """The file's text with the fault.

    Raises:
        LookupError: the piece to be replaced is not there once.
    """
    if text.count(mutant.right) != 1:
        raise LookupError(
            f"{mutant.file} has {mutant.right!r} {text.count(mutant.right)} times"
        )
    return text.replace(mutant.right, mutant.wrong)


def passes(tests: str, folder: str) -> bool:
    """Whether these tests pass with the package of this folder.

    Raises:
        RuntimeError: there are no such tests, or they could not be run.
    """
    # -P: the checkout, from which this is called, is not searched for the package.
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q"]
    command += ["-p", "no:cacheprovider", tests]
    paths = {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | paths,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode > 1:
        raise RuntimeError(f"{tests} could not be run:\n{found.stdout}{found.stderr}")
    return found.returncode == 0


def main() -> None:
    alive = 0
    for mutant, survives in survivors():
        alive += survives
        caught = "SURVIVES" if survives else "caught"
        print(f"{caught}  {mutant.breaks}: {mutant.tests}", flush=True)
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
