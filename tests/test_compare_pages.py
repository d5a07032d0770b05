"""The pages that compare Shoal with other tools: both codes of each run, where they can.

The title of a block says whose it is: the tool's (PEERS), "Shoal", "Both", or the tool's and
then Shoal's in one script.
"""

import os
import random
import re
import runpy
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import preloaded
import pytest
from page_kit import DOCS, fences

PAGES = DOCS / "compare"
PEERS = {
    "determined": "Determined",
    "huggingface": "Hugging Face",
    "lightning": "Lightning",
    "optuna": "Optuna",
    "rapidfire": "RapidFire AI",
    "ray-tune": "Ray Tune",
    "wandb-sweeps": "W&B sweeps",
}
# What each page's code needs beside scikit-learn.
NEEDS = {
    "huggingface": ("transformers", "accelerate", "optuna"),
    "lightning": ("lightning",),
    "optuna": ("optuna",),
    "rapidfire": ("transformers", "tokenizers", "pandas"),
    "wandb-sweeps": ("wandb",),
}
# Peers whose code is only compiled, by test_docs: they need a cluster, or an NVIDIA GPU. The
# code of two others has tests of its own.
COMPILED = {"determined", "rapidfire"}
BY_THEMSELVES = {"ray-tune", "wandb-sweeps"}


def script(page: str, *titles: str) -> str:
    """The blocks of a page with these titles, one after the other."""
    found = [each for each in fences((PAGES / f"{page}.md").read_text()) if each.title in titles]
    assert {each.title for each in found} >= set(titles) - {"Both"}
    assert all(each.language == "python" for each in found)
    return "\n".join(each.text for each in found)


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs blocks of a page as a script in an empty folder; gives what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def printed(page: str, *titles: str) -> str:
        pytest.importorskip("sklearn")
        for package in NEEDS.get(page, ()):
            pytest.importorskip(package)
        if page == "rapidfire":
            save_a_model(tmp_path / "models" / "base")
        path = tmp_path / "page.py"
        path.write_text(script(page, *titles))
        capsys.readouterr()
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return printed


def save_a_model(folder: Path) -> None:
    """A language model of a few words, with its tokenizer, as of the Hub."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "the", "a", "dog", "cat", "sees", "and"]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    size = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **size)).save_pretrained(folder)


@pytest.mark.parametrize("page", PEERS)
def test_a_page_has_both_codes_a_table_of_names_and_one_of_what_is_better(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    titles = [each.title for each in fences(text) if each.language == "python"]
    both = [title for title in titles if title in (PEERS[page], "Shoal")]
    assert both == [PEERS[page], "Shoal"], "side by side, the reader's own code first"
    assert set(titles) <= {*both, "Both", f"{PEERS[page]}'s objective in Shoal"}, "run by nobody"
    assert text.count("**Stay with") == text.count("**Come") == 1
    assert "## Names" in text
    table = text.split("## What each does better")[1].split("\n## ")[0]
    verdicts = [row.split("|")[-2].strip() for row in table.splitlines() if row.startswith("| ")][
        2:
    ]
    for name in (PEERS[page].split()[0], "Shoal"):
        # "Hugging Face" is called by its class there, "W&B sweeps" by its first word.
        name = {"Hugging": "Trainer", "Ray": "Ray Tune"}.get(name, name)
        assert sum(verdict.startswith(name) for verdict in verdicts) >= 2, "a fair table"


@pytest.mark.parametrize("page", PEERS)
def test_lines_of_code_fit_in_a_column(page: str) -> None:
    for fence in fences((PAGES / f"{page}.md").read_text()):
        if fence.title:
            long = [line for line in fence.text.splitlines() if len(line) > 60]
            assert not long


def test_the_first_page_names_them_all() -> None:
    there = {page.stem for page in PAGES.glob("*.md")} - {"index"}
    assert there == set(PEERS)
    text = (PAGES / "index.md").read_text()
    assert not [page for page in PEERS if f"]({page}.md)" not in text]


LONG = {"wandb-sweeps"}  # a run of W&B for each of sixteen trials


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in PEERS]
)
def test_shoals_code_runs(page: str, run: Run) -> None:
    printed = run(page, "Both", "Shoal")
    number = r"0\.[5-9]\d+" if page != "rapidfire" else "finished"
    assert re.search(number, printed), printed[-2000:]


@pytest.mark.slow  # nothing of Shoal runs here
@pytest.mark.parametrize("page", sorted(set(PEERS) - COMPILED - BY_THEMSELVES))
def test_the_peers_code_runs(page: str, run: Run) -> None:
    printed = run(page, "Both", PEERS[page])
    assert re.search(r"^0\.[5-9]\d+", printed, flags=re.M), printed[-2000:]


@pytest.mark.slow
def test_an_objective_of_optuna_runs_as_it_is(run: Run, tmp_path: Path) -> None:
    import shoal

    run("optuna", "Optuna", "Optuna's objective in Shoal")
    assert len(shoal.load_study(tmp_path / "runs" / "objective").trials) == 16


@pytest.mark.slow
def test_a_sweeps_function_runs_offline(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep needs an account: here its configurations are drawn, and everything else is real."""
    wandb = pytest.importorskip("wandb")
    rng, sweeps, names = random.Random(0), [], []
    sweep, agent, init, log = wandb.sweep, wandb.agent, wandb.init, wandb.Run.log

    def made(*args: Any, **kwargs: Any) -> str:
        sweeps.append(signature(sweep).bind(*args, **kwargs).arguments)
        return "name"

    def draws(*args: Any, **kwargs: Any) -> None:
        given = signature(agent).bind(*args, **kwargs).arguments
        assert (given["sweep_id"], given["count"]) == ("name", 16)
        for _ in range(2):
            given["function"]()

    def begun(*args: Any, **kwargs: Any) -> Any:
        space = sweeps[0]["sweep"]["parameters"]
        config = {name: rng.uniform(each["min"], each["max"]) for name, each in space.items()}
        config["width"] = int(config["width"])
        # wandb reads the environment and the folder once a process, maybe in another test.
        return init(*args, config=config, mode="offline", dir=tmp_path, **kwargs)

    def logged(run: Any, data: dict[str, Any]) -> None:
        names.extend(data)
        log(run, data)

    monkeypatch.setattr(wandb, "sweep", made)
    monkeypatch.setattr(wandb, "agent", draws)
    monkeypatch.setattr(wandb, "init", begun)
    monkeypatch.setattr(wandb.Run, "log", logged)
    run("wandb-sweeps", "W&B sweeps")
    assert names == [sweeps[0]["sweep"]["metric"]["name"]] * 9 * 2


@pytest.mark.slow
def test_ray_tunes_code_runs(tmp_path: Path) -> None:
    """With fewer trials: each is a process that imports torch."""
    pytest.importorskip("ray.tune")
    pytest.importorskip("sklearn")
    path = tmp_path / "page.py"
    code = script("ray-tune", "Ray Tune")
    assert code.count("num_samples=16") == 1
    path.write_text(code.replace("num_samples=16", "num_samples=2"))
    done = preloaded.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "RAY_AIR_NEW_OUTPUT": "0"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^0\.[5-9]\d+ {", done.stdout, flags=re.M), done.stdout[-2000:]


@pytest.mark.parametrize("page", PEERS)
def test_a_page_says_whether_its_code_was_only_compiled(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    assert bool(re.search(r"only\s+compiled", text)) == (page in COMPILED)
