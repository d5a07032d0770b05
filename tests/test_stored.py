"""Studies that earlier code wrote, one of each kind, are read, replayed, resumed and reported
as that code did it.

They lie in tests/stored; how they were written, and by which commit, is said in make.py there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import stored_kit as kit

import shoal
from shoal import policy, search
from shoal.engine.journal import plain
from shoal.train.recipe import pickling

NAMED = json.loads((kit.STORED / "named.json").read_text())
HELD = json.loads((kit.STORED / "held.json").read_text())
SAID = {name: kit.expected(name) for name in kit.names()}
TRAINED = [name for name in SAID if "story" in SAID[name]]
SIMULATED = [name for name in SAID if name not in TRAINED]
OFTEN = {  # replayed and resumed by the quick tests; the others go the same ways
    "auto",
    "by-hand",
    "failures",
    "hyperband",
    "killed",
    "pack",
    "pbt",
    "ray-batch-per-slot",
    "ray-hop",
    "stopped",
    "stopped-hop",
    "stopped-optuna",
}


def seldom(name: str) -> list[pytest.MarkDecorator]:
    """The mark of studies that only the tests of a night look at: old schemas, or like others."""
    return [] if name in OFTEN or name.startswith("code-") else [pytest.mark.nightly]


REPLAYED = [pytest.param(name, marks=seldom(name)) for name in TRAINED]
RESUMED = [
    pytest.param(name, marks=seldom(name) or [pytest.mark.slow] * SAID[name]["ray"])
    for name in TRAINED
]


@pytest.fixture(autouse=True)
def needs_its_library(request: pytest.FixtureRequest) -> None:
    """The recipes of two kinds are of other libraries' classes."""
    name = request.node.name
    for kind, library in (("code-lightning", "lightning"), ("code-huggingface", "transformers")):
        if kind in name:
            pytest.importorskip(library, reason=f"{library} is not installed")


@pytest.fixture(autouse=True)
def beside_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the studies names the file of its profile by a relative path."""
    monkeypatch.chdir(kit.STORED)


@pytest.fixture(autouse=True)
def where_its_code_imports_from(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the studies has its recipe pickled without the text of a module that it imports."""
    if "code-pickle" in request.node.name:
        monkeypatch.syspath_prepend(kit.STORED / "code")


@pytest.fixture
def alike(name: str) -> bool:
    """Whether this machine rounds as the one on which the study was written."""
    return SAID[name]["numerics"] in kit.numerics()


def check(now: Any, then: Any, exact: bool = True) -> None:
    """Two digests are the same; unless `exact`, up to rounding."""
    found = list(kit.differences(now, then, exact))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("name", [*TRAINED, *SIMULATED])
def test_it_is_reported_as_it_was(tmp_path: Path, name: str) -> None:
    folder = kit.unpack(name, tmp_path)
    check(kit.status(folder), SAID[name]["status"])
    check(kit.page(folder, tmp_path / "page.html"), SAID[name]["page"])


@pytest.mark.parametrize("name", TRAINED)
def test_it_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    then = SAID[name]
    study = kit.loaded(kit.unpack(name, tmp_path), then)
    check(kit.story(study), then["story"])
    check(kit.record(study), then["record"])
    check(kit.weights(study), then["weights"])
    best = {trial: weights["sha256"] for trial, weights in kit.weights(study, "best").items()}
    check(best, then["best"])


@pytest.mark.parametrize("name", REPLAYED)
def test_it_is_replayed_as_it_was(tmp_path: Path, name: str, alike: bool) -> None:
    study = kit.loaded(kit.unpack(name, tmp_path), SAID[name])
    check(*kit.replayed(study, SAID[name]["replay"], alike), alike)


@pytest.mark.parametrize("name", RESUMED)
def test_it_goes_on_as_it_did(tmp_path: Path, name: str, alike: bool) -> None:
    """Trials with one slot each learn the same to the last bit; others up to rounding."""
    then = SAID[name]
    wanted = {key: then[key] if item == kit.SAME else item for key, item in then["resumed"].items()}
    folder = kit.unpack(name, tmp_path)
    if then["source"]:
        kit.marked(folder)
    study = kit.loaded(folder, then, own=then["source"])
    if name == "given-profile":  # a file outside of the folder, which no mark vouches for
        with pytest.raises(shoal.StudyError, match="names profile"):
            study.resume(progress=False)
        again = {"profile": kit.STORED / "given.toml", "checkpoint_every": 1.0}
        study.optimize(policy="hop-random", device="cpu", progress=False, **again)
    else:
        study.resume(progress=False)
    exact = alike and not then["wide"]
    check(kit.story(study), wanted["story"], exact)
    check(kit.weights(study), wanted["weights"], exact)
    check(*kit.replayed(study, wanted["replay"], alike), exact)


@pytest.mark.skipif(not kit.same_python(HELD), reason="pickled by another Python")
@pytest.mark.parametrize("name", HELD["data"])
def test_data_that_a_recipe_held_is_read_as_it_was(name: str) -> None:
    data = pickling.loads((kit.STORED / "held.pkl").read_bytes())[name]
    check(kit.data_read(data), HELD["data"][name])


def fields_of(described: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that came since."""
    return {
        key: fields_of(item, then[key]) if isinstance(then[key], dict) else item
        for key, item in described.items()
        if key in then
    }


# What has other fields by now, as it is said now.
NOW_SAID = {"hybrid": "hybrid(policy=hop(rule=rotation, seed=0))"}


@pytest.mark.parametrize("text", NAMED["policies"])
def test_a_policy_is_made_again_from_a_head(text: str) -> None:
    described = NAMED["policies"][text]
    made = policy.rebuild(described)
    again = plain(policy.describe(made))
    if text in NOW_SAID:
        assert again == plain(policy.describe(policy.parse(NOW_SAID[text])))
        assert policy.rebuild(again) == made
    else:
        assert fields_of(again, described) == described


@pytest.mark.parametrize("text", NAMED["searchers"])
def test_a_searcher_is_made_again_from_a_head(text: str) -> None:
    """A field that came since is None then: with another, a study would count as another search."""
    described = NAMED["searchers"][text]
    again = plain(search.describe(search.rebuild(described)))
    assert fields_of(again, described) == described
    assert {again[key] for key in again.keys() - described.keys()} <= {None}
