"""The convergence fit (Capes et al., eq. 1)."""

import sys
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from small_studies import follow, nodes, seen, state, table, trial

from shoal.core.event import Advanced, Evaluated
from shoal.core.fold import fold
from shoal.core.trial import TrialId
from shoal.policy.reference.baselines import HeSrpt, SrptK, Wrate
from shoal.policy.width.convergence import Convergence, fit_convergence, foretold
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi
from shoal.policy.width.explore import Explore
from shoal.policy.width.waterfill import WaterFill


@pytest.mark.parametrize(("scale", "stretch"), [(1.0, 1.0), (1e3, 1e4), (1e-4, 1.0)])
def test_a_curve_is_found_again(scale: float, stretch: float) -> None:
    k = np.arange(1, 40)
    true = Convergence(0.3 / scale / stretch, 0.5 / scale, 0.7 * scale)
    found = fit_convergence(k * stretch, [true.loss(x) for x in k * stretch])
    assert found.slope == pytest.approx(true.slope, rel=1e-4)
    assert found.floor == pytest.approx(true.floor, rel=1e-4)


def test_what_is_left_is_foretold_from_the_first_third() -> None:
    rng = np.random.default_rng(1)
    true = Convergence(0.3, 0.5, 0.7)
    seen = np.arange(1, 31)
    found = fit_convergence(seen, [true.loss(k) * rng.normal(1.0, 0.005) for k in seen])
    assert found.steps_until_flat(0.0004) == pytest.approx(true.steps_until_flat(0.0004), rel=0.2)
    assert true.steps_until_flat(0.0004) == pytest.approx(90, abs=1)


def test_steps_to_a_loss() -> None:
    curve = Convergence(0.5, 1.0, 0.25)
    assert curve.loss(curve.steps_to(0.3)) == pytest.approx(0.3)
    assert curve.steps_to(0.25) == inf
    assert curve.steps_to(9.0) == 0


def test_a_flat_loss_has_nothing_left() -> None:
    assert fit_convergence([1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5]).steps_until_flat(0.01) < 5


def test_wrong_points_are_refused() -> None:
    with pytest.raises(ValueError, match="three"):
        fit_convergence([1, 2], [1.0, 0.5])
    with pytest.raises(ValueError, match="finite"):
        fit_convergence([1, 2, 3], [1.0, 0.5, float("nan")])
    with pytest.raises(ValueError, match="drop"):
        Convergence(1.0, 1.0, 0.0).steps_until_flat(0.0)


# -- what is left, foretold from scores


T0, T1 = TrialId("t0"), TrialId("t1")
FLAT = table((1.0, 2.0, 3.0, 4.0))


def known(slopes: dict[TrialId, float], epochs: int = 10):
    two = state([trial(0, 10_000.0), trial(1, 10_000.0)], nodes(4))
    for name, slope in slopes.items():
        curve = Convergence(slope, 1.0, 0.5)
        two = fold(
            two,
            [
                Advanced({name: 100.0 * epochs}),
                *(Evaluated(name, k, {"loss": curve.loss(k)}) for k in range(1, epochs + 1)),
            ],
        )
    return seen(two, FLAT)


def test_what_is_left_follows_the_curve() -> None:
    look = known({T0: 0.1})
    curve = Convergence(0.1, 1.0, 0.5)
    ends = curve.steps_until_flat(0.005 * curve.loss(1))
    assert foretold("loss")(look, T0) == pytest.approx((ends - 10) * 100, rel=0.02)


def test_few_scores_tell_nothing() -> None:
    assert foretold("loss")(known({T0: 0.1}, epochs=2), T0) == 9800.0


def test_a_metric_that_no_evaluation_gives_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 'other', evaluations give loss: say foretell='loss'"):
        foretold("other")(known({T0: 0.1}, epochs=1), T0)


POLICIES = [Doubling, Explore, Equi, Wrate, HeSrpt, SrptK, WaterFill]


@pytest.mark.parametrize("policy", POLICIES)
def test_all_that_share_by_what_is_left_foretell_it(policy: Any) -> None:
    """Q_j of section 3.1. Of two trials asked for as much, the one that flattens has less left."""
    look = replace(known({T0: 0.02, T1: 2.0}), running={})
    asked: list[float] = []

    def left(view: Any, trial: TrialId) -> float:
        asked.append(foretold("loss")(view, trial))
        return asked[-1]

    module = sys.modules[policy.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "left_by", lambda metric: left if metric == "loss" else None)
        rule = policy(foretell="loss")
        rule.decide(look, rule.start())
    assert asked[0] > asked[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_metric_that_rises_is_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match="'val/accuracy': say foretell='loss'"):
        policy(foretell="val/accuracy")
    policy(foretell="accuracy_loss")


@pytest.mark.parametrize("policy", [Doubling, Explore])
def test_a_misspelt_metric_shows_at_the_first_score_though_nothing_is_decided(policy: Any) -> None:
    rule = policy(foretell="los")
    begun = state([trial(0, 10_000.0)], nodes(4))
    plan, memory = rule.decide(seen(begun, FLAT), rule.start())
    running = follow(begun, plan, Evaluated(T0, 1, {"loss": 1.0}))
    with pytest.raises(ValueError, match="say foretell='loss'"):
        rule.decide(seen(running, FLAT, 1.0), memory)


def test_of_several_metrics_a_loss_is_suggested() -> None:
    two = known({})
    scores = {T0: ((1.0, {"accuracy": 0.5, "lr": 0.1, "val_loss": 1.0}),)}
    with pytest.raises(ValueError, match="say foretell='val_loss'"):
        foretold("los")(replace(two, scores=scores), T0)
    rising = {T0: ((1.0, {"accuracy": 0.5}),)}
    with pytest.raises(ValueError, match="return a loss from validation_step"):
        foretold("los")(replace(two, scores=rising), T0)


def test_never_more_than_asked_for_and_never_nothing() -> None:
    assert foretold("loss", drop=1e-9)(known({T0: 0.1}), T0) == 9000.0
    assert foretold("loss", drop=0.9)(known({T0: 0.1}), T0) == 250.0


def test_a_policy_that_foretells_favours_the_trial_that_ends_first() -> None:
    look = known({T0: 0.02, T1: 2.0})
    three = replace(look, slots=dict(list(look.slots.items())[:3]))

    def widths(policy: Any) -> dict[str, int]:
        return {gang.trials[0]: len(gang.slots) for gang in policy.decide(three, None)[0].gangs}

    assert widths(Equi()) == {T0: 2, T1: 1}
    assert widths(Equi(foretell="loss")) == {T0: 1, T1: 2}


def test_water_fill_gives_more_to_the_trial_that_ends_last() -> None:
    slopes = {T0: 0.02, T1: 2.0}
    look = known(slopes)
    left = {t: foretold("loss")(look, t) for t in slopes}
    longer, shorter = sorted(slopes, key=lambda t: -left[t])
    plan, _ = WaterFill(foretell="loss").decide(look, None)
    widths = {gang.trials[0]: len(gang.slots) for gang in plan.gangs}
    assert left[longer] > 1.5 * left[shorter] and widths[longer] > widths[shorter]
    even, _ = WaterFill().decide(look, None)
    assert {len(gang.slots) for gang in even.gangs} == {2}, "as many samples are left of each"
    with pytest.raises(ValueError, match="either expected or foretold"):
        WaterFill(expect=10.0, foretell="loss")
