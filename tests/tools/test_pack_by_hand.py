"""Packs driven by hand: load, train, evaluate, free."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.policy import Fifo
from shoal.train.lane import blame
from shoal.train.recipe.unit import TrialError
from shoal.train.tools.verify import compare, differences

CONFIGS = [{"width": w, "lr": lr} for w in (4, 8) for lr in (1e-2, 1e-3)]


def alone(recipe: Any, config: Any, epochs: int) -> Any:
    made = shoal.pack(recipe, [config])
    made.train(epochs)
    return made.state("m0")


def test_each_learns_what_it_learns_in_a_study(tmp_path: Path, blobs: Any) -> None:
    space = {"width": shoal.grid([4, 8]), "lr": shoal.grid([1e-2, 1e-3])}
    study = shoal.create_study(
        blobs(), storage=tmp_path / "s", metric="accuracy", mode="max", search_space=space
    )
    study.optimize(policy=Fifo(), max_epochs=2, progress=False)
    packed = shoal.pack(blobs(), [trial.config for trial in study.trials])
    assert packed.names == ("m0", "m1", "m2", "m3")
    packed.train()
    values = packed.train()
    assert all(0 < values[name]["loss"] < 3 for name in packed.names)
    scores = packed.evaluate()
    for name, trial in zip(packed.names, study.trials, strict=True):
        assert scores[name]["accuracy"] == trial.scores[-1][1]["accuracy"]
        assert str(packed.model(name).state_dict()) == str(study.load_model(trial).state_dict())
        assert not packed.model(name).training


def test_models_come_and_go(blobs: Any) -> None:
    packed = shoal.pack(blobs(), CONFIGS[:2])
    packed.train()
    third = packed.load(CONFIGS[2], name="third")
    packed.train(2)
    state = packed.free("m0")
    assert packed.names == ("m1", third) and len(packed.evaluate()) == 2
    with pytest.raises(shoal.StudyError, match="no model named m0 is loaded; loaded: m1, third"):
        packed.free("m0")
    with pytest.raises(shoal.StudyError, match="named third is loaded already"):
        packed.load(CONFIGS[0], name="third")
    again = packed.load(CONFIGS[0], state)
    assert compare(packed.state(again), state).equal  # also before anything is trained
    packed.train()
    assert list(differences(packed.state(again), alone(blobs(), CONFIGS[0], 4))) == []
    assert list(differences(packed.state("third"), alone(blobs(), CONFIGS[2], 3))) == []


def test_what_is_given_back_does_not_change_any_more(blobs: Any) -> None:
    packed = shoal.pack(blobs(), CONFIGS[:2])
    new, model = packed.state("m1"), packed.model("m1")
    before = str(model.state_dict())
    packed.train()
    assert not compare(packed.state("m1"), new).equal
    assert str(model.state_dict()) == before


def test_one_that_goes_wrong_is_freed(blobs: Any) -> None:
    packed = shoal.pack(blobs(fail=8), CONFIGS)
    packed.train()
    assert packed.names == ("m0", "m1") and packed.failed == dict.fromkeys(
        ("m2", "m3"), "RuntimeError: no such width"
    )
    with pytest.raises(shoal.StudyError, match="it failed: RuntimeError: no such width"):
        packed.state("m2")
    assert list(differences(packed.state("m1"), alone(blobs(), CONFIGS[1], 1))) == []


def test_without_room_for_all_it_trains_in_smaller_packs(blobs: Any) -> None:
    class Crowded(blobs):  # type: ignore[misc]
        alive: Any = weakref.WeakSet()

        def room(self, model: Any) -> None:
            self.alive.add(model)
            if len(self.alive) > 2:
                raise torch.OutOfMemoryError("no room")

        def training_step(self, model: Any, batch: Any) -> Any:
            self.room(model)
            return super().training_step(model, batch)

        def validation_step(self, model: Any, batch: Any) -> Any:
            self.room(model)
            return super().validation_step(model, batch)

    packed = shoal.pack(Crowded(), CONFIGS)
    packed.train(2)
    packed.train()
    assert packed.names == ("m0", "m1", "m2", "m3") and packed.failed == {}
    for name, config in zip(packed.names, CONFIGS, strict=True):
        assert list(differences(packed.state(name), alone(blobs(), config, 3))) == []
    scores = packed.evaluate()
    assert scores == shoal_scores(blobs(), 3)


def shoal_scores(recipe: Any, epochs: int) -> dict[str, Any]:
    packed = shoal.pack(recipe, CONFIGS)
    packed.train(epochs)
    return packed.evaluate()


def test_a_schedule_follows_the_validation_as_in_a_study(tmp_path: Path, blobs: Any) -> None:
    class Falling(blobs):  # type: ignore[misc]
        def configure_optimizers(self, model: Any, config: Any) -> Any:
            made = torch.optim.Adam(model.parameters(), lr=config["lr"])
            return made, torch.optim.lr_scheduler.ReduceLROnPlateau(
                made, mode="max", factor=0.5, patience=0, threshold=1.0
            )

    study = shoal.create_study(
        Falling(), storage=tmp_path / "s", metric="accuracy", mode="max", search_space=CONFIGS[0]
    )
    study.optimize(policy=Fifo(), max_epochs=4, progress=False)
    made = shoal.pack(Falling(), CONFIGS[:1], metric="accuracy")
    made.train(4)
    assert made.state("m0")["optimizer"]["param_groups"][0]["lr"] <= CONFIGS[0]["lr"] / 4, (
        "there were epochs without gain"
    )
    assert str(made.model("m0").state_dict()) == str(study.load_model(study.trials[0]).state_dict())


def test_a_validation_that_raises_takes_no_model(blobs: Any) -> None:
    class Wrong(blobs):  # type: ignore[misc]
        wrong = False

        def validation_step(self, model: Any, batch: Any) -> Any:
            if self.wrong and model.width == 8:
                raise KeyError("acuracy")
            return super().validation_step(model, batch)

        def configure_model(self, config: Any) -> Any:
            model = super().configure_model(config)
            model.width = config["width"]
            return model

    recipe = Wrong()
    made = shoal.pack(recipe, CONFIGS)
    made.train(2)
    recipe.wrong = True
    with pytest.raises(TrialError, match="m2: KeyError: 'acuracy'"):
        made.evaluate()
    recipe.wrong = False
    unfit = made.load({"lr": 0.1})
    with pytest.raises(TrialError, match=f"{unfit}: KeyError: 'width'"):
        made.evaluate()
    with pytest.raises(TrialError, match="width"):
        made.free(unfit)
    assert (
        made.names == ("m0", "m1", "m2", "m3")
        and made.failed == {}
        and made.evaluate() == shoal_scores(blobs(), 2)
    )


def test_a_model_that_waits_elsewhere_is_read_and_freed_where_it_is(blobs: Any) -> None:
    """And after one is gone, all are tried together again."""
    room, alive = 2, weakref.WeakSet[Any]()

    class Small(blobs):  # type: ignore[misc]
        def configure_model(self, config: Any) -> Any:
            model = super().configure_model(config)
            alive.add(model)
            if len(alive) > room:
                raise torch.OutOfMemoryError("no room")
            return model

    made = shoal.pack(Small(), CONFIGS)
    made.train(2)
    away = [name for name in made.names if made._models.by_name[name].source is not None]
    assert made.failed == {} and len(away) == 2 and made._turns.most == 2
    for name in away:
        assert list(differences(made.state(name), alone(blobs(), CONFIGS[int(name[1:])], 2))) == []
        assert len(alive) == 2
    made.free(away[0])
    room = 3
    made.train()
    assert made._turns.most == float("inf")
    assert made.load(CONFIGS[0], name="m4") == "m4" and made.load(CONFIGS[0]) == "m5", (
        "a name nobody chose"
    )


def test_fused(blobs: Any) -> None:
    class Plain(blobs):  # type: ignore[misc]
        def configure_model(self, config: Any) -> Any:
            return torch.nn.Sequential(
                torch.nn.Linear(5, config["width"]),
                torch.nn.Tanh(),
                torch.nn.Linear(config["width"], 3),
            )

    packed = shoal.pack(Plain(), CONFIGS, fuse=True)
    packed.train(3)
    assert any(
        2 in each.tries
        for rounds in packed._models.trainer.pack.fusion.gauge._rounds.values()
        for each in rounds
    ), "tried"
    for name, config in zip(packed.names, CONFIGS, strict=True):
        assert (
            compare(packed.state(name)["model"], alone(Plain(), config, 3)["model"]).difference
            < 1e-4
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, shoal.DataError])
def test_training_that_is_ended_early_leaves_the_models_as_before(
    blobs: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ctrl-C is the user's only where it has its usual handler, which other tests replace.
    monkeypatch.setattr(blame, "_may_be_ctrl_c", lambda: True)
    steps: list[int] = []

    class Ended(blobs):  # type: ignore[misc]
        at = -1

        def training_step(self, model: Any, batch: Any) -> Any:
            steps.append(1)
            if len(steps) == self.at:
                raise error("enough")
            return super().training_step(model, batch)

    recipe = Ended()
    packed = shoal.pack(recipe, CONFIGS)
    packed.train()
    recipe.at = len(steps) + 8  # also where the four take their steps fused
    with pytest.raises(error):
        packed.train(2)
    packed.train()
    assert packed.names == ("m0", "m1", "m2", "m3") and packed.failed == {}
    for name, config in zip(packed.names, CONFIGS, strict=True):
        assert list(differences(packed.state(name), alone(blobs(), config, 2))) == []
