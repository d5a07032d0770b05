"""Packs on slots that really train: over several slots, with slots that die, and out of memory."""

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_kit import SEED, Bench, Given, Tiny, trials_of

from shoal.backend.positions import Positions
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.setup import RaySetup
from shoal.core.event import Advanced, Ended, Joined, Left, Measured, Planned
from shoal.core.state import State
from shoal.options import Options
from shoal.policy import Hop, Pack
from shoal.testing.backends import Setting, check_backend

pytestmark = pytest.mark.usefixtures("shared_ray")


def packs(bench: Bench) -> list[tuple[str, ...]]:
    return [gang.trials for entry in bench.events(Planned) for gang in entry.start]


@pytest.mark.slow
def test_packs_on_two_slots(tmp_path: Path) -> None:
    """One fails; each other learns what it learns alone."""
    bench = Bench(tmp_path, Tiny())
    bench.run(Given(trials_of(bench.data, [4, 5, 6, 13, 7, 8], 2)), Pack("random", most=4), slots=2)
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 5, 6, 7, 8)} | {
        "t13": "failed: ArithmeticError: thirteen"
    }
    assert max(map(len, packs(bench))) >= 3
    bench.check_visits(2, but=["t13"])
    bench.check_weights()
    for width in (4, 5, 6, 13, 7, 8):  # each in its own log
        log = (tmp_path / "trials" / f"t{width}" / "log.txt").read_text()
        assert {line for line in log.splitlines() if line.startswith("a step")} == {
            f"a step at width {width} with 1 threads"
        }


@pytest.mark.nightly
def test_contract(tmp_path: Path) -> None:
    recipe = Tiny()
    data = recipe.data()
    runs = count()

    def make(state: State, since: float) -> Ray:
        folder = tmp_path / str(
            next(runs) if state.run == 1 else len(list(tmp_path.iterdir())) - 1
        )  # resumed: the last one's
        course = Positions(SEED, data.sizes, state=state, logs=folder / "trials")
        at = str(folder / "checkpoints")
        setup = RaySetup(at, state.run, Options("ray", slots=1, checkpoint_every=0.0), since=since)
        return Ray(recipe, data, course, setup)

    policies = [Pack("random"), Pack("random", fuse=True)]
    configs = [{"width": 4}, {"width": 5}]
    check_backend(
        Setting(
            make,
            data.sizes,
            configs,
            {"width": 13},
            policies=policies,
            close=lambda backend: backend.close(),
        )
    )


class Killer(Tiny):
    """Width 9 ends its process."""

    def training_step(self, model: Any, batch: Any) -> Any:
        if model[0].out_features == 9:
            os._exit(1)
        return super().training_step(model, batch)


@pytest.mark.slow
def test_a_trial_that_kills_its_slots_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """Twice in a pack, a third time alone."""
    bench = Bench(tmp_path, Killer())
    bench.run(Given(trials_of(bench.data, [4, 9, 5], 2)), Pack("random", most=3), slots=1)
    ends = {name: how.partition(", ")[0] for name, how in bench.state.ended.items()}
    assert ends == {
        "t9": "failed: its slot died under it 3 times",
        "t4": "finished",
        "t5": "finished",
    }
    assert [len(pack) for pack in packs(bench)][:2] == [3, 3]
    assert [len(pack) for pack in packs(bench) if "t9" in pack] == [3, 3, 1]
    assert len(bench.events(Left)) == 3
    bench.check_visits(2, but=["t9"])
    bench.check_weights()


class Hungry(Tiny):
    """Each lane holds 60 MB from its first step on. Two have room within 150 MB, four never do.

    A limit of the address space leaves a little more room than its number: what malloc had
    reserved before (64 MB for each thread that allocates) is still to be filled.
    """

    def configure_model(self, config: Mapping[str, Any]) -> Any:
        model = super().configure_model(config)
        model.held = []
        return model

    def training_step(self, model: Any, batch: Any) -> Any:
        if not model.held:
            model.held.append(torch.ones(15 * 2**20))
        return super().training_step(model, batch)


@pytest.mark.slow
def test_a_pack_without_address_space_is_split(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Hungry())
    trials = trials_of(bench.data, [4, 5, 6, 7], 2)
    bench.run(
        Given(trials),
        Pack("random", most=4),
        slots=1,
        slot_memory_gb=150 / 1024,
        state_memory_gb=0.0,
    )
    assert bench.state.ended == dict.fromkeys((trial.id for trial in trials), "finished")
    ends = [entry for entry in bench.events(Ended) if entry.why]
    assert ends and "out of memory with" in ends[0].why
    assert len(packs(bench)[0]) == 4
    assert {slot.memory for entry in bench.events(Joined) for slot in entry.slots} == {150 / 1024}
    assert not bench.events(Left)
    bench.check_visits(2)
    bench.check_weights()


class Seeming(torch.nn.Module):
    """The same values, of which an output seems to take 100 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        self.large(x.new_zeros(1).expand(25 * 2**20))
        return x


class Claiming(Tiny):
    """Models that seem to need 100 MiB."""

    def configure_model(self, config: Mapping[str, Any]) -> Any:
        model = super().configure_model(config)
        model.insert(1, Seeming())
        return model


@pytest.mark.slow
def test_the_first_pack_that_trains_has_room(tmp_path: Path) -> None:
    """The slot learns by a step that four have room, though not all at once: they take turns."""
    bench = Bench(tmp_path, Claiming())
    trials = trials_of(bench.data, [4, 5, 6, 7], 2)
    bench.run(Given(trials), Pack("random"), slots=1, slot_memory_gb=250 / 1024)
    assert set(bench.state.ended.values()) == {"finished"}
    needs = [figures["memory"] for figures in bench.state.figures.values()]
    assert 100 / 1024 < min(needs) <= max(needs) < 101 / 1024
    assert not any(entry.why for entry in bench.events(Ended))
    assert {len(pack) for pack in packs(bench)} == {4}
    bench.check_visits(2)
    bench.check_weights()


@pytest.mark.slow
def test_a_pack_of_kinds_that_nobody_measured_is_given_back_once(tmp_path: Path) -> None:
    """Its slot tells a rate of each kind before any of it trains; then the same pack does."""
    bench = Bench(tmp_path, Tiny())
    bench.run(Given(trials_of(bench.data, [4, 8], 2)), Pack("random"), slots=1)
    assert set(bench.state.ended.values()) == {"finished"}
    events = [line.entry for line in bench.lines]
    begin = next(i for i, each in enumerate(events) if isinstance(each, Advanced))
    before = events[:begin]  # it trains
    given_back = [each.gang.trials for each in before if isinstance(each, Ended)]
    assert given_back == packs(bench)[:1]
    told = [each for each in before if isinstance(each, Measured)]
    rated = {each.signature for each in told if "rate" in each.figures}
    assert len(rated) == 2 and rated == set(bench.state.figures)
    assert [sorted(pack) for pack in packs(bench)] == [["t4", "t8"]] * 2
    bench.check_visits(2)
    bench.check_weights()


class Largest(Tiny):
    batch_size = "max"


@pytest.mark.slow
def test_the_largest_batch_goes_with_the_trial_from_slot_to_slot(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Largest())
    bench.run(Given(trials_of(bench.data, [4, 5, 6], 2)), Hop(), slots=2)
    assert set(bench.state.ended.values()) == {"finished"}
    assert {bench.state.figures[name]["batch_size"] for name in bench.state.signature.values()} == {
        32
    }
    bench.check_visits(2)
    bench.check_weights()
