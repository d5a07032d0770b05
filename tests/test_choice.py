"""The choice of `auto` against each fixed policy, on the workloads of benchmarks/choice.py."""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from shoal.study.parts import auto

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
QUICK = ("few large",)
LONG = (
    "many small",
    "small and large",
    "many large",
    "arrivals",
    "churn",
    "own data",
    "first rung",
)


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script; papers/ has a module `common`, too, which is another one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "common", raising=False)
    import choice

    return choice


def over_best(choice: Any, name: str, seeds: int) -> float:
    """The time under `auto` over that of the best fixed policy, in the mean over the seeds."""
    work = {each.name: each for each in choice.workloads()}[name]
    found = [choice.compared(work, seed) for seed in range(seeds)]
    assert all(len(each["took"]) > 1 for each in found), "there was a choice"
    return mean(each["auto_over_best"] for each in found)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_it_is_within_5_percent_of_the_best(choice: Any, name: str) -> None:
    seeds = 1 if name in QUICK else 2
    assert over_best(choice, name, seeds) <= 1.05


def test_there_is_no_other_workload(choice: Any) -> None:
    assert {work.name for work in choice.workloads()} == {*QUICK, *LONG}


@pytest.mark.parametrize("name", ["few large", "small and large"])
def test_who_never_leaves_the_usual_choice_is_not(
    choice: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison would notice a bad choice."""
    monkeypatch.setattr(auto, "GAIN", 10.0)
    assert over_best(choice, name, seeds=1) > 1.05


@pytest.mark.slow
def test_on_ray_it_shares_out_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `choice_on_ray.py` runs it: three trials on four slots end sooner if some have more."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from emulated import own_process

    script = BENCHMARKS / "choice_on_ray.py"
    found = own_process(str(script), "auto", "--workload", "few")
    assert found["finished"] == 3
    assert found["followed"][-1] in auto.WIDE
