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
from concurrent.futures import ThreadPoolExecutor
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
OF_METER = "tests/train/lane/test_meter.py::test_of_48_batches_the_last_20_count"
OF_STEADY = "tests/policy/elastic/test_steady.py"
OF_DOUBLING = "tests/policy/width/test_doubling.py"
OF_MILP = "tests/policy/elastic/test_milp.py"
ALL_REDUCE = "profile/all_reduce.py"
OF_ALL_REDUCE = "tests/profile/test_all_reduce.py"

MUTANTS = (
    Mutant(
        "Capes, eq. 2-4: what a measured width says beside them holds for others",
        ALL_REDUCE,
        "return measured[wide[min(at, len(wide) - 1)]]",
        "return Beside()",
        f"{OF_ALL_REDUCE}::test_one_measured_width_foretells_the_others",
    ),
    Mutant(
        "Capes, eq. 2-4: sums hide behind the backward pass",
        ALL_REDUCE,
        "return Beside(hidden=-more / compute)",
        "return Beside()",
        OF_ALL_REDUCE,
    ),
    Mutant(
        "Capes, eq. 4: a width that is no power of two pays for it",
        ALL_REDUCE,
        "rounds = 5 + 4 * ceil(log2(width))",
        "rounds = 4 * log2(width)",
        f"{OF_ALL_REDUCE}::test_a_width_that_is_no_power_of_two_pays_for_it",
    ),
    Mutant(
        "Capes, eq. 2-4: measured widths are kept",
        ALL_REDUCE,
        "if width in rates:",
        "if width == 1:",
        f"{OF_ALL_REDUCE}::test_measured_widths_are_kept_and_no_other_is_above_linear",
    ),
    Mutant(
        "Capes, eq. 2-4: never above linear",
        ALL_REDUCE,
        "visible = max(self.seconds(width) - beside.hidden * compute, 0.0)",
        "visible = self.seconds(width) - beside.hidden * compute",
        f"{OF_ALL_REDUCE}::test_measured_widths_are_kept_and_no_other_is_above_linear",
    ),
    Mutant(
        "Capes, eq. 2: gloo's sums go round a ring",
        ALL_REDUCE,
        'ring if "rings" in every else quickest',
        "quickest",
        OF_ALL_REDUCE,
    ),
    Mutant(
        "Capes, eq. 2-4: what others say of hidden sums and fixed costs",
        "profile/measure.py",
        "return mean_beside(corrections)",
        "return Beside()",
        f"{OF_ALL_REDUCE}::test_a_trial_that_was_only_measured_alone_has_its_own_model_to_sum",
    ),
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
        "FLEET, algorithm 3: who has a partner is nobody else's partner",
        PLACE,
        "partner = partners.pop(0)",
        "partner = partners[0]",
        OF_FLOTILLA,
    ),
    Mutant(
        "FLEET, algorithm 3: up to 1024 orders are looked at",
        PLACE,
        "ORDERS = 1024",
        "ORDERS = 1",
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
        ">= self.alpha * len(shared)",
        ">= 0.99 * len(shared)",
        f"{OF_FLOTILLA}::test_a_new_flotilla_where_fewer_slots_than_alpha_are_busy",
    ),
    Mutant(
        "FLEET, algorithm 1: the paper's alpha",
        FLOTILLA,
        "alpha: float = 0.8",
        "alpha: float = 0.9",
        f"{OF_FLOTILLA}::test_the_papers_alpha",
    ),
    Mutant(
        "FLEET, algorithm 2: the fastest gives the pace",
        FLOTILLA,
        "fast = max(able",
        "fast = min(able",
        f"{OF_FLOTILLA}::test_flotillas_of_five_models",
    ),
    Mutant(
        "FLEET, algorithm 2: what is left over goes to the slowest",
        FLOTILLA,
        "slowest = min(rising",
        "slowest = max(rising",
        f"{OF_FLOTILLA}::test_what_is_left_over_goes_to_the_slowest",
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
        "FLEET, appendix B.3: all widths up to M_t are measured",
        "policy/width/flotilla.py",
        "upto = _widths_to_measure(view, wanting)",
        "upto = 2",
        "tests/policy/width/test_flotilla.py",
    ),
    Mutant(
        "FLEET, appendix B.3: 48 batches at most",
        "train/lane/measure.py",
        "STEPS, COUNTED = 48, 20",
        "STEPS, COUNTED = 49, 20",
        OF_METER,
    ),
    Mutant(
        "FLEET, appendix B.3: the last 20 batches count",
        "train/lane/measure.py",
        "STEPS, COUNTED = 48, 20",
        "STEPS, COUNTED = 48, 21",
        OF_METER,
    ),
    Mutant(
        "FLEET, eq. 5: beyond two nodes a slot gains less and less",
        "profile/fleet.py",
        " * q ** (width - base)",
        "",
        "tests/profile/test_fleet.py",
    ),
    Mutant(
        "Capes, eq. 6: seconds saved, by the slot",
        "policy/width/doubling.py",
        "return (ask.seconds(rung + 1) - ask.seconds(rung)) / ask.step(rung)",
        "return ask.seconds(rung + 1) - ask.seconds(rung)",
        f"{OF_DOUBLING}::test_what_is_saved_counts_by_the_slot",
    ),
    Mutant(
        "Capes, eq. 6: seconds saved by the next step, after each step",
        "policy/width/doubling.py",
        "heappush(heap, (_saved(taken[i], rungs[i]), i))",
        "heappush(heap, (_saved(taken[i], 0), i))",
        OF_DOUBLING,
    ),
    Mutant(
        "Pack, kNN: the distance of two values in order",
        GROUPING,
        "return abs(a - b)",
        "return int(a != b)",
        f"{OF_GROUPING}::test_distance_is_that_of_the_papers_example",
    ),
    Mutant(
        "Pack, kNN: values without order are equal or not",
        GROUPING,
        "return int(a != b)",
        "return 0",
        f"{OF_GROUPING}::test_distance_is_that_of_the_papers_example",
    ),
    Mutant(
        "Pack, kNN: none is further than the threshold",
        GROUPING,
        "if far[i] <= within]",
        "]",
        f"{OF_GROUPING}::test_nearest_stops_at_its_threshold",
    ),
    Mutant(
        "Pack, kNN: the next one is drawn at random",
        GROUPING,
        "left.pop(int(rng.integers(len(left))))",
        "left.pop(0)",
        f"{OF_GROUPING}::test_who_takes_the_nearest_is_drawn_at_random",
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
        "policy/reference/milp.py",
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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from zip(MUTANTS, pool.map(survives, MUTANTS), strict=True)


def survives(mutant: Mutant) -> bool:
    """Whether its tests pass with a copy of the package that has the fault."""
    with TemporaryDirectory() as folder:
        package = Path(folder) / "shoal"
        shutil.copytree(ROOT / "shoal", package)
        path = package / mutant.file
        path.write_text(broken(path.read_text(), mutant))
        return passes(mutant.tests, folder)


def broken(text: str, mutant: Mutant) -> str:
    """The file's text with the fault.

    Raises:
        LookupError: the piece to be replaced is not there once.
    """
    if text.count(mutant.right) != 1:
        raise LookupError(f"{mutant.file} has {mutant.right!r} {text.count(mutant.right)} times")
    return text.replace(mutant.right, mutant.wrong)


def passes(tests: str, folder: str) -> bool:
    """Whether these tests pass with the package of this folder.

    Raises:
        RuntimeError: there are no such tests, or they could not be run.
    """
    # -P: the checkout, from which this is called, is not searched for the package.
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q"]
    command += ["-p", "no:cacheprovider", tests]
    found = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode > 1:
        raise RuntimeError(f"{tests} could not be run:\n{found.stdout}{found.stderr}")
    return found.returncode == 0


def main() -> None:
    alive = 0
    for mutant, lives in survivors():
        alive += lives
        caught = "SURVIVES" if lives else "caught"
        print(f"{caught}  {mutant.breaks}: {mutant.tests}", flush=True)
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
