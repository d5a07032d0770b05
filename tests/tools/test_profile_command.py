"""`shoal profile`: what is timed, what is written, and that a study and the simulator read it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_cli import DIGITS, shoal
from torch import nn

import shoal as package
from shoal.core.cluster import SlotId
from shoal.core.errors import StudyError
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Trial, TrialId
from shoal.profile.table import Table
from shoal.study.setup import data_of
from shoal.tools import profile as profiling
from shoal.tools.profile import CAUSES, Kind, time_rescales, time_width
from shoal.tools.profile_page import chart, distinct_configs, lines, toml, write, write_page


class Sizes(package.Recipe):
    """Two sizes of model, and one that cannot be built."""

    search_space = {"size": package.grid([4, 64, "none"]), "lr": package.grid([0.1, 0.01])}
    metric, mode = "loss", "min"
    batch_size = 16

    def data(self) -> package.Data:
        x = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
        return package.Data.arrays(x, x.sum(1), shards=2, validation=0.1)

    def prepare(self, samples: Any) -> Any:
        return samples

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(8, config["size"]), nn.Tanh(), nn.Linear(config["size"], 1))

    def configure_optimizers(self, model: nn.Module, config: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0])[:, 0], batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": (model(batch[0])[:, 0] - batch[1]).square()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    study = package.create_study(Sizes(), storage=tmp_path_factory.mktemp("profile") / "study")
    request = profiling.ProfileRequest(widths=[2], slots=2, feeders=(1, 2))
    data = data_of(study.recipe)
    trials = profiling.trials_of(study, data, {})
    return profiling.profiled(study, data, trials, request)


def test_no_wider_than_the_slowest_kind_needs_to_catch_up() -> None:
    """Defect 15: with all widths of FLEET's M_t, every width was timed, however alike the kinds."""
    assert profiling.every_width([100.0, 40.0], 8) == [1, 2, 3]
    assert profiling.every_width([100.0, 100.0], 8) == [1, 2]
    assert profiling.every_width([100.0, 1.0], 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert profiling.every_width([100.0, 40.0], 1) == [1]


@pytest.mark.slow
def test_rates_are_drawn_against_width(found: dict[str, Any], tmp_path: Path) -> None:
    """A line for each kind that was timed at several widths, and what slots would give at best."""
    drawn = chart(found)
    assert drawn is not None
    measured = [each for each in drawn["data"] if each["showlegend"]]
    assert len(measured) == len(timed(found)) == len(drawn["data"]) - len(measured)
    for line, kind in zip(measured, timed(found), strict=True):
        assert line["x"] == [1, 2]
        assert line["y"] == [kind["widths"][width]["rate"] for width in (1, 2)]
    page = write_page(found, tmp_path / "profile.html")
    assert page is not None
    text = page.read_text()
    assert 'data-drawing="rates"' in text
    assert measured[0]["name"] in text


def test_one_width_is_no_curve(found: dict[str, Any], tmp_path: Path) -> None:
    short = [{**kind, "widths": dict(list(kind["widths"].items())[:1])} for kind in found["kinds"]]
    assert chart({**found, "kinds": short}) is None
    assert write_page({**found, "kinds": short}, tmp_path / "none.html") is None
    assert not (tmp_path / "none.html").exists()


def timed(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [kind for kind in found["kinds"] if kind["failed"] is None]


def test_every_kind_has_its_times_at_every_width(found: dict[str, Any]) -> None:
    kinds = timed(found)
    assert [[config["lr"] for config in kind["configs"]] for kind in kinds] == [[0.1, 0.01]] * 2
    for kind in kinds:
        assert sorted(kind["widths"]) == [1, 2], "width 1 always: efficiency is told against it"
        for width, row in kind["widths"].items():
            assert (
                row["batch"] == 16
                and row["forward"] > 0
                and row["backward"] > 0
                and row["step"] > 0
            )
            assert (row["reduce"] > 0) == (width > 1)
            assert sum(row[cause] for cause in CAUSES) <= row["total"] * 1.001
            assert row["rate"] == pytest.approx(16 / row["total"]), (
                "batches straddle passes: none is smaller"
            )
            assert row["efficiency"] == pytest.approx(
                row["rate"] / (width * kind["widths"][1]["rate"])
            )
        assert {"memory", "build", "evaluate", "save", "up", "down"} <= kind["figures"].keys()
        assert all(kind["figures"][name] > 0 for name in ("memory", "up", "down"))


def test_a_kind_that_raises_is_reported_beside_the_others(found: dict[str, Any]) -> None:
    (failed,) = [kind for kind in found["kinds"] if kind["failed"] is not None]
    assert len(failed["configs"]) == 2 and "TypeError" in failed["failed"]
    assert any("failed: TypeError" in line for line in lines(found))


def test_feeders_are_timed_and_the_number_that_keeps_up_is_named(found: dict[str, Any]) -> None:
    assert sorted(found["feeders"]) == [1, 2] and min(found["feeders"].values()) > 0
    alone = max(kind["widths"][1]["rate"] for kind in timed(found))
    assert profiling.feeders_needed([alone], {1: alone / 2, 2: alone, 4: 2 * alone}) == 2
    assert profiling.feeders_needed([alone], {1: alone / 2}) is None


def test_what_is_written_is_a_profile(found: dict[str, Any], tmp_path: Path) -> None:
    path = write(found, tmp_path / "p.toml")
    trials = [
        Trial(TrialId(f"t{n}"), 1.0, {"size": size, "lr": 0.5}) for n, size in enumerate((4, 64))
    ]
    table = Table.load(path).of({trial.id: trial for trial in trials})
    one, two = (SlotId("a"),), (SlotId("a"), SlotId("b"))
    for trial, kind in zip(trials, timed(found), strict=True):
        rates = [kind["widths"][width]["rate"] for width in (1, 2)]
        assert table.curve(trial.id, 2) == pytest.approx(rates, rel=1e-4)
        narrow, wide = Gang((Lane(trial.id, one),)), Gang((Lane(trial.id, two),))
        assert table.switch(narrow, wide) == pytest.approx(kind["figures"]["up"], rel=1e-4)
        assert table.switch(wide, narrow) == pytest.approx(kind["figures"]["down"], rel=1e-4)
        assert table.cost(trial.id).memory == pytest.approx(kind["figures"]["memory"], rel=1e-4)


def test_the_simulator_reads_it(found: dict[str, Any], tmp_path: Path) -> None:
    write(found, tmp_path / "p.toml")
    spec = tmp_path / "spec.toml"
    rate = timed(found)[1]["widths"][1]["rate"]
    spec.write_text(
        'profile = "p.toml"\n[slots]\ncount = 1\n[[trials]]\nsamples = '
        f"{1000 * rate}\nconfig = {{ size = 64 }}\n"
        '[policies.fifo]\nname = "fifo"\n'
    )
    row = json.loads(shoal("simulate", str(spec), "--json"))["specs"][0]["policies"]["fifo"]
    assert row["makespan_s"] == pytest.approx(1000.0, rel=1e-2)


def test_rows_are_told_apart_by_what_speed_depends_on() -> None:
    def kind(*configs: dict[str, Any]) -> dict[str, Any]:
        return {"configs": list(configs)}

    one, two = (
        kind({"size": 1, "lr": 0.1, "noise": 3}, {"size": 1, "lr": 0.2, "noise": 4}),
        kind({"size": 2, "lr": 0.1, "noise": 3}),
    )
    assert [config for config, _ in distinct_configs([one, two])] == [{"size": 1}, {"size": 2}]
    alike = (kind({"a": 1, "b": 1}, {"a": 2, "b": 2}), kind({"a": 1, "b": 2}, {"a": 2, "b": 1}))
    rows = list(distinct_configs(alike))
    assert [config for config, _ in rows] == [
        {"a": 1, "b": 1},
        {"a": 2, "b": 2},
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
    ]


def test_values_as_toml_writes_them(tmp_path: Path) -> None:
    import tomllib

    config = {
        "a": 1,
        "b": 1e-05,
        "c": True,
        "d": 'x "y" z',
        "e": (1, (2, "q")),
        "f.g": 2.5,
        "h": None,
    }
    read = tomllib.loads(f"config = {toml(config)}")["config"]
    assert read == {"a": 1, "b": 1e-05, "c": True, "d": 'x "y" z', "e": [1, [2, "q"]], "f.g": 2.5}


def test_widths_that_cannot_be(tmp_path: Path) -> None:
    study = package.create_study(Sizes(), storage=tmp_path / "study")
    trial = Trial(TrialId("a"), 1.0, {"size": 4, "lr": 0.1})
    with pytest.raises(StudyError, match="between 1 and 2, the slots"):
        profiling.profiled(
            study, data_of(study.recipe), [trial], profiling.ProfileRequest(widths=[4], slots=2)
        )


def test_one_configuration_is_completed_from_the_search_space(tmp_path: Path) -> None:
    study = package.create_study(Sizes(), storage=tmp_path / "study")
    (trial,) = profiling.trials_of(study, data_of(study.recipe), {"lr": 7.0})
    assert trial.config == {"size": 4, "lr": 7.0}


@pytest.mark.slow
def test_of_a_study_its_own_trials(tmp_path: Path) -> None:
    study = package.create_study(Sizes(), storage=tmp_path / "study")
    study.optimize(max_epochs=1, policy="fifo", progress=False)
    data = data_of(study.recipe)
    known = profiling.trials_of(package.load_study(tmp_path / "study"), data, {})
    assert [trial.id for trial in known] == list(study.state.known) and len(known) == 6
    text = shoal(
        "profile",
        str(tmp_path / "study"),
        "size=4",
        "--slots",
        "1",
        "--feeders",
        "1",
        "--out",
        str(tmp_path / "p"),
    )
    assert "size=4, lr=0.1" in text
    assert " –" in text, "nothing was timed"


@pytest.mark.slow
def test_what_the_study_has_measured_is_not_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = package.create_study(Sizes(), storage=tmp_path / "study")
    study.optimize(max_epochs=1, policy="fifo", progress=False)
    request = profiling.ProfileRequest(slots=1, feeders=())
    data = data_of(study.recipe)
    said: list[str] = []
    trials = [trial for trial in study.state.known.values() if trial.config["size"] == 4]
    (kind,) = profiling.profiled(study, data, trials, request, said.append)["kinds"]
    figures = study.state.figures[kind["signature"]]
    assert "1 speed known from the study" in said
    assert kind["widths"][1]["batch"] == 16
    rate = 1 / figures["rate"] + figures.get("data", 0.0)
    assert kind["widths"][1]["rate"] == pytest.approx(1 / rate)
    assert "forward" not in kind["widths"][1], "it was not timed"

    again = replace(request, again=True)
    (timed,) = profiling.profiled(study, data, trials, again)["kinds"]
    assert timed["widths"][1]["forward"] > 0
    other = replace(request, threads=2)
    (timed,) = profiling.profiled(study, data, trials, other)["kinds"]
    assert timed["widths"][1]["forward"] > 0, "the run had one thread a slot"
    monkeypatch.setattr("shoal.tools.profile.kind_of_name", lambda device: "a GPU")
    (timed,) = profiling.profiled(study, data, trials, request)["kinds"]
    assert timed["widths"][1]["forward"] > 0, "the run was on the CPU"


def test_a_kind_that_is_known_is_left_out() -> None:
    kind = Kind("s", Trial(TrialId("a"), 1.0, {}), None, [{}])
    measured = {"rate": 100.0, "step": 0.16, "rate@2": 150.0, "up": 0.2, "down": 0.1}
    assert kind.take({**measured, "switch": 0.3}) == 2
    assert kind.costs == {"up": 0.2, "down": 0.1, "switch": 0.3}
    assert kind.figures()["widths"][2] == {"rate": 150.0, "efficiency": 0.75}
    nobody: Any = None  # who asks a slot raises
    for width in (1, 2):
        time_width(nobody, [kind], width, 2)
    time_rescales(nobody, kind)
    with pytest.raises(AttributeError):
        time_width(nobody, [kind], 4, 4)


def test_the_efficiency_of_a_known_width_is_told_against_one_slot_timed_later() -> None:
    kind = Kind("s", Trial(TrialId("a"), 1.0, {}), None, [{}])
    kind.take({"rate@2": 150.0})
    kind.widths[1] = {"rate": 100.0}
    assert kind.figures()["widths"][2]["efficiency"] == 0.75


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "p.toml"
    text = shoal("profile", DIGITS, "width=16", "--slots", "1", "--feeders", "1", "--out", str(out))
    assert "all-reduce" in text and "width=16" in text and "profile: " in text
    assert Table.load(out).rows[0].config == {"width": 16}
    assert "--widths takes whole numbers" in shoal("profile", DIGITS, "--widths", "1,x", code=2)
