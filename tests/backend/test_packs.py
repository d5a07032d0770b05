"""Packs in whole studies on the local backend: to the last bit what the same trials learn alone."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from test_local import maker

import shoal
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Ended, Joined, Opened, Planned, Submitted
from shoal.core.fold import fold, step
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId
from shoal.policy import Fifo, Hop, Pack, PacksAsTrials
from shoal.policy.pack import packs_as_trials
from shoal.profile.table import Row, Table
from shoal.reporting import summary
from shoal.testing import Setting, check_backend
from shoal.train.fuse.gauge import Gauge
from shoal.train.slot import loss_sum

SPACE = {"width": shoal.grid([4, 8, 6]), "lr": shoal.grid([1e-2, 1e-3])}


def studied(folder: Path, recipe: Any, policy: Any, **options: Any) -> Any:
    study = shoal.create_study(
        recipe, storage=folder, metric="accuracy", mode="max", search_space=SPACE
    )
    study.optimize(policy=policy, max_epochs=2, progress=False, **options)
    return study


def together(study: Any) -> int:
    """Lanes in the largest gang planned."""
    starts = [
        gang
        for line in study.lines()
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
    ]
    return max(len(gang.lanes) for gang in starts)


def check_equal(study: Any, alone: Any) -> None:
    assert all(row["equal"] for row in study.replay())
    for one, other in zip(study.trials, alone.trials, strict=True):
        assert (one.id, one.config, one.status.split(":")[0]) == (
            other.id,
            other.config,
            other.status.split(":")[0],
        )
        if one.status == "finished":
            assert one.scores == other.scores
            assert study.state.visits[one.id] == alone.state.visits[other.id]


@pytest.mark.parametrize("most", [2, 8])
def test_a_study_in_packs_is_the_same_study(tmp_path: Path, blobs: Any, most: int) -> None:
    alone = studied(tmp_path / "alone", blobs(), Fifo())
    study = studied(tmp_path / "packed", blobs(), Pack("random", most=most))
    assert together(study) == min(most, 6)
    assert {trial.status for trial in study.trials} == {"finished"}
    check_equal(study, alone)


class Summed(Gauge):
    """Lanes have one backward pass, unless that cannot be."""

    def wants(self, *_: Any, **__: Any) -> int | None:
        return None

    def choose(self, kind: str, lanes: int) -> int:
        return 1 if self.why(kind) is not None else lanes


@pytest.mark.parametrize("draws", [False, True])
def test_a_study_in_sums_is_the_same_study(
    tmp_path: Path, blobs: Any, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a backward pass turns out to draw random numbers: the round is made again."""
    monkeypatch.setattr(loss_sum, "Gauge", Summed)
    sums: list[int] = []
    backward = torch.autograd.backward

    def noting(tensors: Any, *args: Any, **named: Any) -> None:
        if isinstance(tensors, list):
            sums.append(len(tensors))
        backward(tensors, *args, **named)

    monkeypatch.setattr(torch.autograd, "backward", noting)

    def noisy(gradient: torch.Tensor) -> torch.Tensor:
        return gradient + torch.randn_like(gradient)

    class Drawing(type(blobs())):  # type: ignore[misc]
        def training_step(self, model: Any, batch: Any) -> Any:
            loss = super().training_step(model, batch)
            if draws:
                loss.register_hook(noisy)
            return loss

    alone = studied(tmp_path / "alone", Drawing(), Fifo())
    assert not sums
    study = studied(tmp_path / "packed", Drawing(), Pack("random", most=3))
    assert {trial.status for trial in study.trials} == {"finished"}
    assert (1 <= len(sums) <= 3) if draws else (max(sums) == 3)
    check_equal(study, alone)


@pytest.mark.parametrize("concurrent", [False, True], ids=["one by one", "brackets at once"])
def test_hyperband_in_packs_promotes_whom_it_promotes_without(
    tmp_path: Path, blobs: Any, concurrent: bool
) -> None:
    """Packing knows nothing of brackets and rungs: where all are under way at once, a pack
    holds trials of several.
    """
    space = {"width": shoal.choice([4, 6, 8]), "lr": shoal.loguniform(1e-3, 1e-1)}

    def searched(name: str, policy: Any) -> Any:
        study = shoal.create_study(
            blobs(), storage=tmp_path / name, metric="accuracy", mode="max", search_space=space
        )
        study.optimize(
            shoal.Hyperband(max_epochs=4, reduction_factor=2, concurrent=concurrent),
            policy,
            progress=False,
        )
        return study

    alone, study = searched("alone", Fifo()), searched("packed", Pack("random", most=4))
    assert {round(t.epochs) for t in alone.trials} == {1, 2, 4} and together(study) == 4
    check_equal(study, alone)
    bracket = {
        t.id: i
        for i, (first, end) in enumerate([(0, 4), (4, 7), (7, 10)])
        for t in study.trials[first:end]
    }
    gangs = [
        gang
        for line in study.lines()
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
    ]
    assert any(len({bracket[t] for t in gang.trials}) > 1 for gang in gangs) == concurrent


def test_trials_that_go_wrong_in_a_pack(tmp_path: Path, blobs: Any) -> None:
    recipe = blobs(fail=8, diverge=6)
    alone = studied(tmp_path / "alone", recipe, Fifo())
    study = studied(tmp_path / "packed", recipe, Pack("random"))
    assert sum(trial.status.startswith("failed") for trial in study.trials) == 4
    check_equal(study, alone)


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [False, True])
def test_contract(tmp_path: Path, blobs: Any, fuse: bool) -> None:
    make, data = maker(blobs(fail=6), tmp_path)
    configs = [{"width": w, "lr": 0.01} for w in (4, 4, 8, 5)]
    policies = [Pack("random", most=3, fuse=fuse)]
    check_backend(
        Setting(make, data.sizes, configs, bad={"width": 6, "lr": 0.01}, policies=policies)
    )


# -- out of memory


def trained_together(study: Any) -> list[int]:
    """Lanes of the gangs that trained, as often as they told of it."""
    state, found = State(), []
    for line in study.lines():
        if isinstance(line.entry, Advanced):
            (trial,) = line.entry.samples
            found.append(len(state.running[trial].lanes))
        state = step(state, line.entry)
    return found


@pytest.mark.parametrize("fuse", [False, True])
def test_the_first_pack_that_trains_has_room(tmp_path: Path, blobs: Any, fuse: bool) -> None:
    """Nobody runs out of memory, and nobody gets a strike. More have room that take turns."""

    def searched(name: str, policy: Any, **options: Any) -> Any:
        space = {"width": 64, "lr": shoal.grid([1e-1, 1e-2, 1e-3, 1e-4])}
        study = shoal.create_study(
            blobs(), storage=tmp_path / name, metric="accuracy", search_space=space
        )
        study.optimize(policy=policy, max_epochs=2, progress=False, **options)
        return study

    alone = searched("alone", Fifo())
    (figures,) = alone.state.figures.values()
    step = figures["transient"]
    state = figures["memory"] - step
    room = 3.5 * state + step  # of three that take turns
    study = searched("packed", Pack("random", fuse=fuse), slot_memory_gb=room)
    assert together(study) == 4, "what is planned while nothing is known"
    most = int(room / figures["memory"]) if fuse else 3  # all may step at once
    assert most < 4 and max(trained_together(study)) == most
    (packed,) = study.state.figures.values()
    assert packed["memory"] == pytest.approx(figures["memory"])
    assert "crowded" not in packed
    assert not summary(study.lines())["splits"]
    assert not study.state.strikes
    assert {trial.status for trial in study.trials} == {"finished"}
    if not fuse:
        check_equal(study, alone)


class Crowded:
    """A recipe's part: no more than `most` models may be alive in training at once."""

    most = 2
    alive: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def room(self, model: Any) -> None:
        self.alive.add(model)
        if len(self.alive) > self.most:
            raise torch.OutOfMemoryError("no room for another model")


@pytest.mark.parametrize(("memory", "rest"), [(None, 0.0), (1.0, 2.0)])
def test_a_pack_without_room_is_split_and_all_finish(
    tmp_path: Path, blobs: Any, memory: float | None, rest: float
) -> None:
    class Recipe(Crowded, blobs):  # type: ignore[misc]
        alive = weakref.WeakSet()  # type: ignore[var-annotated]

        def training_step(self, model: Any, batch: Any) -> Any:
            self.room(model)
            return super().training_step(model, batch)

    alone = studied(tmp_path / "alone", blobs(), Fifo())
    study = studied(
        tmp_path / "packed",
        Recipe(),
        Pack("random", most=6),
        slot_memory_gb=memory,
        state_memory_gb=rest,
    )
    assert {trial.status for trial in study.trials} == {"finished"}
    assert together(study) == 6
    ends = [
        line.entry for line in study.lines() if isinstance(line.entry, Ended) and line.entry.why
    ]
    assert ends[0].why == "out of memory with 6 trials on local"
    assert len(ends) <= 4 or rest
    for one, other in zip(study.trials, alone.trials, strict=True):
        assert one.scores == other.scores
    found = summary(study.lines())
    assert [split["trials"] for split in found["splits"]] == [list(end.gang.trials) for end in ends]
    assert all(split["needs"] or len(split["trials"]) == 1 for split in found["splits"])
    if memory:
        assert (
            max(figures.get("crowded", 0.0) for figures in found["figures"].values())
            >= memory / 2 - 1e-9
        )


@pytest.mark.parametrize("memory", [None, 1.0])
def test_a_hopping_pack_without_room_goes_on_in_smaller_ones(
    tmp_path: Path, blobs: Any, memory: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recipe(Crowded, blobs):  # type: ignore[misc]
        alive = weakref.WeakSet()  # type: ignore[var-annotated]

        def training_step(self, model: Any, batch: Any) -> Any:
            self.room(model)
            return super().training_step(model, batch)

    monkeypatch.setattr(packs_as_trials, "gains", lambda *_: True)
    study = studied(
        tmp_path / "s",
        Recipe(shards=2),
        PacksAsTrials(Hop(), most=6),
        slot_memory_gb=memory,
        state_memory_gb=0.0,
    )
    assert {trial.status for trial in study.trials} == {"finished"} and together(study) == 6
    assert all(row["equal"] for row in study.replay())


def test_a_waiting_pack_that_turns_out_too_large_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was formed before its trials' memory was known."""
    monkeypatch.setattr(packs_as_trials, "gains", lambda *_: True)
    shards, names = ({ShardId("a"): 10, ShardId("b"): 10}, [TrialId(f"t{i}") for i in range(8)])
    slot = Slot(SlotId("g"), shards=frozenset(shards), memory=1.0)
    trials = [Submitted(Trial(t, 40.0, {}, shards=frozenset(shards))) for t in names]
    state = fold(State(), [Opened(1, shards), Joined((slot,)), *trials])

    def plan(memory: float, remembered: Any) -> tuple[list[int], Any]:
        policy = PacksAsTrials(Hop())
        made, after = policy.decide(
            view(state, 0.0, Table((Row((10.0,), memory=memory),)).believe(state)), remembered
        )
        assert all(len(gang.lanes) * memory <= 1.0 for gang in made.gangs) and len(made.gangs) == 1
        return [len(pack) for pack in after[0]], after

    sizes, remembered = plan(0.0, PacksAsTrials(Hop()).start())
    assert sizes == [8]
    assert plan(0.2, remembered)[0] == [5, 3]


def test_one_trial_that_has_no_room_alone_fails(tmp_path: Path, blobs: Any) -> None:
    class Recipe(blobs):  # type: ignore[misc]
        def training_step(self, model: Any, batch: Any) -> Any:
            if model[0].out_features == 6:
                raise MemoryError("far too large")
            return super().training_step(model, batch)

    study = studied(tmp_path / "packed", Recipe(), Pack("random", most=6))
    assert [trial.status for trial in study.trials if trial.config["width"] == 6] == [
        "failed: MemoryError: far too large"
    ] * 2
    assert all(trial.status == "finished" for trial in study.trials if trial.config["width"] != 6)
