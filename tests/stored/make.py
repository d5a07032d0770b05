"""Writes the stored studies: one of each kind, and what the code that wrote them says of them.

    PYTHONPATH=. python tests/stored/make.py [NAME …]

The studies here were written by the code at commit 7749e32, before its modules moved to other
folders; those of code-*, whose recipes are mostly stored as source, by that at 68ee194. They show that later code reads, resumes, replays and reports what earlier code wrote;
so they are never written again. For a new kind of study, add a function, and run this script
for that kind alone, at a commit that is known to be right.

Each makes NAME.tar.xz (journal, recipe, checkpoints) and NAME.json (the expected outcome, see
tests/stored_kit.py). Names of this machine and its folders are taken out.
"""

import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import cloudpickle
import numpy as np
import stored_kit as kit
import torch

import shoal
from shoal.core.event import Opened, Planned
from shoal.engine.journal import plain, read, replay
from shoal.engine.sealed import sealed

COMMIT = "7749e32"
OF_CODE = "68ee194"  # the commit of the kinds that are named code-…
LEFT_OUT = (
    "study.lock",
    "holder.json",
    "report.html",
    "trials",
    "lock",
)  # of a study's folder
SLOW = {"STORED_SLOW": "0.05"}
RAY = {"backend": "ray", "slots": 2, "feeders": 0}
KINDS: dict[str, Callable[[Path], None]] = {}


def kind(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """One of the kinds, named as the function."""
    KINDS[make.__name__.replace("_", "-")] = make
    return make


def study(folder: Path, recipe: str, *given: Any, **more: Any) -> shoal.Study:
    """A new study of that recipe."""
    space = more.pop("space", None)
    return shoal.create_study(
        getattr(kit.recipes(), recipe)(*given, **more),
        storage=folder,
        search_space=space,
        seed=7,
    )


def train(made: shoal.Study, searcher: Any = None, policy: str = "fifo", **options: Any) -> None:
    """Run it on the CPU, without a display."""
    made.optimize(searcher, policy, device="cpu", progress=False, **options)


# -- on one slot
# ----------------------------------------------------------------------------------------------


@kind
def grid(folder: Path) -> None:
    """A grid, one trial after the other."""
    train(study(folder, "Clusters"))


@kind
def auto(folder: Path) -> None:
    """As a user's first study: policy and searcher by default."""
    train(study(folder, "Clusters"), policy="auto")


@kind
def auto_among(folder: Path) -> None:
    """The automatic choice among two that are named."""
    train(
        study(folder, "Clusters", space={"width": shoal.grid([3, 5]), "lr": 0.03}),
        policy="auto:fifo,hop-lrw",
    )


@kind
def pack(folder: Path) -> None:
    """Fused packs, of several widths and optimizers."""
    space = {
        "width": shoal.grid([3, 5]),
        "lr": shoal.grid([0.03, 0.01]),
        "optimizer": shoal.grid(["adam", "sgd"]),
    }
    train(study(folder, "Clusters", space=space), policy="pack")


@kind
def pack_apart(folder: Path) -> None:
    """Packs whose trials take turns; the grouping is named."""
    train(study(folder, "Clusters"), policy="pack(grouping='random', most=3)", fuse=False)


@kind
def hop(folder: Path) -> None:
    """Units of one shard each."""
    train(study(folder, "Clusters"), policy="hop", validate_every=2)


@kind
def failures(folder: Path) -> None:
    """One trial raises, one diverges, one finishes."""
    space = {"width": shoal.grid([3, 4, 5]), "lr": 0.01}
    train(study(folder, "Clusters", fail=3, diverge=5, space=space))


@kind
def given_profile(folder: Path) -> None:
    """Speeds and costs were given: states are kept by them, not by the clock."""
    train(
        study(folder, "Clusters"),
        policy="hop-random",
        profile="given.toml",
        checkpoint_every=1.0,
    )


# -- searches
# ----------------------------------------------------------------------------------------------


@kind
def hyperband(folder: Path) -> None:
    """Hyperband's brackets in packs."""
    train(study(folder, "Drawn"), "hyperband(reduction_factor=2)", "pack", max_epochs=4)


@kind
def asha(folder: Path) -> None:
    """Asynchronous halving by promotion."""
    train(study(folder, "Drawn"), "asha(num_samples=6, reduction_factor=2)")


@kind
def pbt(folder: Path) -> None:
    """A population, whose worst give way to copies of the best."""
    train(
        study(folder, "Drawn"),
        "pbt(num_samples=4, max_epochs=3, mutate=['lr', 'smoothing'])",
    )


@kind
def optuna(folder: Path) -> None:
    """TPE, past its random beginning."""
    train(
        study(folder, "Drawn"),
        "optuna(num_samples=5, max_epochs=1, options={'n_startup_trials': 2})",
        max_concurrent=1,
    )


@kind
def median(folder: Path) -> None:
    """The median stopping rule over random search."""
    searcher = "median(inner='random(num_samples=5, max_epochs=3)', min_trials=2)"
    train(study(folder, "Drawn"), searcher, max_epochs=3)


@kind
def patience(folder: Path) -> None:
    """Trials that no longer improve end."""
    train(
        study(folder, "Drawn"),
        "patience(epochs=1, min_delta=0.1, inner='random(num_samples=3)')",
        max_epochs=4,
    )


# -- on several slots
# ----------------------------------------------------------------------------------------------


@kind
def ray_hop(folder: Path) -> None:
    """Trials hop between two slots with shards of their own."""
    train(study(folder, "Clusters", shards=2), policy="hop", **RAY)


@kind
def ray_hop_packs(folder: Path) -> None:
    """Packs hop."""
    train(study(folder, "Clusters", shards=2), policy="hop-packs", **RAY)


@kind
def ray_doubling(folder: Path) -> None:
    """Trials on one slot or two."""
    train(
        study(folder, "Wide", samples=600),
        policy="doubling",
        widths=(1, 2),
        checkpoint_every=0,
        **RAY,
    )


@kind
def ray_elastic(folder: Path) -> None:
    """Trials on one slot or two, as gains most."""
    train(
        study(folder, "Wide", samples=600),
        policy="elastic(horizon=5)",
        widths=(1, 2),
        **RAY,
    )


@kind
def ray_flotilla(folder: Path) -> None:
    """Trials of unlike speed over one stream."""
    train(study(folder, "Wide", samples=600), policy="flotilla", widths=(1, 2), **RAY)


@kind
def ray_batch_per_slot(folder: Path) -> None:
    """The batch grows with the trial's slots, so that its visits hold its widths."""
    made = study(folder, "Wide", samples=600, space={"width": shoal.grid([3])})
    made.recipe.batch_per_slot = True
    with _slowly():
        train(made, policy="doubling", widths=(1, 2), **RAY)
    assert any(visit.widths for visits in made.state.visits.values() for visit in visits)


# -- cut off in the middle
# ----------------------------------------------------------------------------------------------


@kind
def stopped(folder: Path) -> None:
    """Ctrl-C after some visits, one trial after the other; every unit was durable."""
    _interrupted(study(folder, "Clusters"), 3, checkpoint_every=0, max_epochs=3)


@kind
def stopped_hop(folder: Path) -> None:
    """Ctrl-C in the middle of hopping."""
    _interrupted(study(folder, "Clusters"), 10, policy="hop", checkpoint_every=0)


@kind
def stopped_ray_hop(folder: Path) -> None:
    """Ctrl-C in the middle of hopping between slots."""
    _interrupted(study(folder, "Clusters", shards=2), 7, policy="hop", checkpoint_every=0, **RAY)


@kind
def stopped_ray_wide(folder: Path) -> None:
    """Ctrl-C while a trial has two slots."""
    made = study(folder, "Wide", samples=600, space={"width": shoal.grid([3])})
    _interrupted(made, 1, policy="doubling", widths=(1, 2), checkpoint_every=0.2, **RAY)
    assert any(
        len(lane.slots) > 1
        for plan in made.lines()
        if isinstance(plan.entry, Planned)
        for g in plan.entry.start
        for lane in g.lanes
    )


@kind
def stopped_asha(folder: Path) -> None:
    """A search that goes on by its memory and the scores so far; stopped by its timeout."""
    with _slowly():
        train(
            study(folder, "Drawn"),
            "asha(num_samples=6, reduction_factor=2)",
            timeout=1.5,
        )


@kind
def stopped_optuna(folder: Path) -> None:
    """A sampler that is built anew from the trials so far."""
    searcher = "optuna(num_samples=4, max_epochs=2, options={'n_startup_trials': 1})"
    _interrupted(study(folder, "Drawn"), 14, searcher=searcher, max_concurrent=1)


@kind
def killed(folder: Path) -> None:
    """kill -9 in the middle of a unit, with a torn last line, and a note in the inbox that
    nobody read.
    """
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "--run", str(folder)],
        env={**os.environ, **SLOW},
    )
    _await(folder, 5)
    process.send_signal(signal.SIGSTOP)
    shoal.load_study(folder).enqueue({"width": 4, "lr": 0.01}, max_epochs=1)
    process.kill()
    process.wait()
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"d":{"samples":{"t0')


def to_be_killed(folder: Path) -> None:
    """What `killed` kills."""
    train(study(folder, "Clusters"), checkpoint_every=0)


@kind
def by_hand(folder: Path) -> None:
    """Trials added, copied with and without their weights, and stopped; some are still to be
    trained. The recipe holds its data.
    """
    made = study(folder, "Holding", space={"width": shoal.grid([3, 5]), "lr": 0.03})
    train(made)
    made.clone("t000", {"lr": 0.01}, max_epochs=3)
    made.resume(progress=False)
    made.clone("t001", {"lr": 0.02}, max_epochs=4)
    made.clone("t001", {"lr": 0.02}, warm_start=False, max_epochs=1)
    named = made.enqueue({"width": 4, "lr": 0.01}, max_epochs=1, priority=2.0)
    made.stop(made.enqueue({"width": 4, "lr": 0.02}))
    assert named in made.state.trials


@contextmanager
def _slowly() -> Iterator[None]:
    """Steps take longer, in this process and in those that it starts."""
    os.environ.update(SLOW)
    try:
        yield
    finally:
        for name in SLOW:
            del os.environ[name]


def _interrupted(made: shoal.Study, visits: int, **options: Any) -> None:
    """Run it, with a Ctrl-C after so many visits."""

    def interrupt() -> None:
        _await(made.folder.path, visits)
        os.kill(os.getpid(), signal.SIGINT)

    with _slowly():
        thread = threading.Thread(target=interrupt)
        thread.start()
        train(made, **options)
        thread.join()
    assert set(made.state.ended) != set(made.state.known), "it was not cut off"


def _await(folder: Path, visits: int) -> None:
    journal = folder / "journal.jsonl"
    while (
        not journal.exists() or sum(map(len, replay(list(read(journal))).visits.values())) < visits
    ):
        time.sleep(0.02)


# -- recipes that are stored as source, and pickles of the same time, written by 68ee194 -----------


CODE = Path("/home/user/code")  # manifests and pickles name it: no place of this machine


def code(name: str) -> Any:
    """A module of tests/stored/code, as `shoal run` imports it from a user's home."""
    from shoal.study.code.recipe_file import load_module

    shutil.copytree(kit.STORED / "code", CODE, dirs_exist_ok=True)
    return load_module(CODE / f"{name}.py")


def begun(folder: Path, recipe: Any, lr: str = "lr", more: Any = None, **options: Any) -> None:
    """A study of the recipe, and a trial that is still to be trained."""
    made = shoal.create_study(recipe, storage=folder, seed=7, **options)
    train(made)
    made.enqueue({lr: 0.05, **(more or {})})


@kind
def code_class(folder: Path) -> None:
    """A recipe's class in a file, whose state names what is Shoal's."""
    begun(folder, code("nets").Net(), more={"width": 4})


@kind
def code_pickle(folder: Path) -> None:
    """A recipe that has no source, as it holds arrays."""
    begun(folder, code("nets").Pickled(), more={"width": 4})


@kind
def code_script(folder: Path) -> None:
    """A recipe's class in the script that was run, which reads variables of it."""
    shutil.copytree(kit.STORED / "code", CODE, dirs_exist_ok=True)
    script = CODE / "script.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    shoal.load_study(folder).enqueue({"width": 4, "lr": 0.05})


@kind
def code_shards(folder: Path) -> None:
    """A recipe that trains a shard."""
    begun(folder, code("nets").Sums())


@kind
def code_several(folder: Path) -> None:
    """Recipes by name."""
    nets = code("nets")
    made = shoal.create_study({"net": nets.Net(), "other": nets.Net()}, storage=folder, seed=7)
    train(made)
    made.enqueue({"recipe": "other", "width": 4, "lr": 0.05})


@kind
def code_function(folder: Path) -> None:
    """A function of the configuration, some of whose arguments are given."""
    begun(
        folder,
        partial(code("nets").train, power=2),
        search_space={"lr": shoal.grid([0.1, 0.2])},
        metric="loss",
        mode="min",
    )


@kind
def code_objective(folder: Path) -> None:
    """An objective as Optuna has them."""
    made = shoal.create_study(code("nets").objective, storage=folder, seed=7, mode="min")
    train(made, num_samples=1)
    made.enqueue({"lr": 0.25})


@kind
def code_command(folder: Path) -> None:
    """A command line."""
    code("sizes")  # its folder is there
    made = {"metric": "loss", "mode": "min", "search_space": {"lr": shoal.grid([0.1, 0.2])}}
    os.chdir(CODE)  # where the command is run
    begun(folder, None, command="echo loss={lr}", **made)


@kind
def code_lightning(folder: Path) -> None:
    """A LightningModule."""
    modules = code("modules")
    recipe = shoal.lightning(modules.Fitted, datamodule=modules.Points(8), max_epochs=2)
    space = {"lr": shoal.grid([0.1, 0.2])}
    begun(folder, recipe, search_space=space, metric="loss", mode="min")


@kind
def code_lightning_by_hand(folder: Path) -> None:
    """A LightningModule that makes its steps itself."""
    modules = code("modules")
    recipe = shoal.lightning(modules.ByHand, datamodule=modules.Points, max_epochs=2, shards=2)
    space = {"lr": shoal.grid([0.1, 0.2])}
    begun(folder, recipe, search_space=space, metric="loss", mode="min")


@kind
def code_huggingface(folder: Path) -> None:
    """A model of Hugging Face."""
    nets = code("nets")
    recipe = shoal.huggingface(
        nets.Line,
        nets.items(),
        0.3,
        nets.collated,
        {"per_device_train_batch_size": 4, "num_train_epochs": 2, "warmup_steps": 1},
        compute_metrics=nets.scores,
    )
    space = {"learning_rate": shoal.grid([0.1, 0.2])}
    begun(folder, recipe, "learning_rate", search_space=space, metric="eval_loss", mode="min")


# -- policies and searchers as a journal's head describes them
# ---------------------------------------------------------------------------

POLICIES = """
fifo | hop | hop(rule='lrw', seed=3) | hybrid | pack | pack(grouping='nearest', most=4, same=['width'], refill=False, fuse=True, seed=2)
packed(policy=hop) | packed(policy=hop(rule='random', seed=5), most=3) | doubling | doubling(rule='exact') | explore | explore(seconds=12, most=4)
width(slots=2) | equi | wrate | hesrpt | srpt-k | waterfill | flotilla | rounds | elastic
elastic(horizon=60, up=3, down=1, admit=4, objective='priority', placement='spatial') | milp | killable
admit(most=3, policy=elastic) | every(seconds=600, policy=doubling) | fallback(policy=hop, other=fifo) | fixed(assignment={'t000': 's0'})
"""
GRID = {"size": shoal.grid([1, 2]), "activation": "relu"}
SPACE = {
    "width": shoal.choice([3, 4]),
    "lr": shoal.loguniform(1e-3, 1e-1),
    "drop": shoal.uniform(0.0, 0.5),
    "depth": shoal.randint(1, 4),
    "size": shoal.grid([1, 2]),
    "optimizer": shoal.choice({"sgd": {"momentum": shoal.uniform(0, 1)}, "adam": {}}),
    "activation": "relu",
}
SEARCHERS = """
grid | random(num_samples=3, seed=2) | halving(num_samples=9, max_epochs=9) | hyperband(reduction_factor=4, max_epochs=16)
asha(num_samples=5, grace_period=2, max_epochs=8) | pbt(num_samples=4, max_epochs=4, asynchronous=True, mutate=['lr'])
median(inner='random(num_samples=4)', grace_period=2) | patience(epochs=3, min_delta=0.1) | optuna(num_samples=4)
"""


def named() -> None:
    """Policies and searchers as plain data."""
    from shoal import policy, search

    def texts(listed: str) -> list[str]:
        return [text.strip() for text in listed.replace("\n", "|").split("|") if text.strip()]

    found: dict[str, dict[str, Any]] = {"policies": {}, "searchers": {}}
    for text in texts(POLICIES):
        found["policies"][text] = policy.describe(policy.parse(text))
    for text in texts(SEARCHERS):
        made = search.parse(text)
        space = GRID if text == "grid" else SPACE
        given = {"space": space} if hasattr(made, "space") else {}
        found["searchers"][text] = search.describe(search.completed(made, given, lambda: made))
    (kit.STORED / "named.json").write_text(json.dumps(plain(found), indent=1) + "\n")


# -- data that a recipe may hold ---------------------------------------------------------------


def held() -> None:
    """Data of each source, pickled as a recipe that holds it is; and what is read from it."""
    rng = np.random.default_rng(11)
    point, label = rng.normal(size=(12, 2)).astype("float32"), rng.integers(0, 3, 12)
    parts = Path("parts")
    parts.mkdir(exist_ok=True)
    for number in range(3):
        chosen = slice(4 * number, 4 * number + 4)
        np.savez(parts / f"part{number}.npz", point[chosen], label[chosen])
    items = torch.utils.data.TensorDataset(torch.as_tensor(point), torch.as_tensor(label))
    made = {
        "arrays": shoal.Data.arrays(point, label, shards=2),
        "named": shoal.Data.arrays(point=point, label=label, shards=2),
        "dataset": shoal.Data.dataset(items, shards=2),
        "folder": shoal.Data.folder(parts, validation=0.3),
    }
    (kit.STORED / "held.pkl").write_bytes(cloudpickle.dumps(made))
    said = {"made": COMMIT, "python": platform.python_version()}
    said["data"] = {name: kit.data_read(data) for name, data in made.items()}
    (kit.STORED / "held.json").write_text(json.dumps(said, indent=1) + "\n")


# -- simulations
# ----------------------------------------------------------------------------------------------

SPEC = """
title = "stored"
seed = 1
checkpoint_every = 60
[slots]
count = 4
per_node = 2
memory = 16.0
[data]
samples = 4000
shards = 4
[[trials]]
count = 5
epochs = 2
poisson = 20
widths = [1, 4]
config = { model = "a", batch_size = 32 }
[[profile]]
points = { 1 = 100, 2 = 180, 4 = 300 }
memory = 1.0
build = 3.0
evaluate = 0.5
save = 0.1
up = 4
down = 2
[policies.fifo]
[policies.hop]
[policies.doubling]
[policies.elastic]
[policies.pack]
"""


def simulate(out: Path) -> None:
    """Simulated journals, a study each: `simulated-POLICY`."""
    spec = out / "spec.toml"
    spec.write_text(SPEC)
    from typer.testing import CliRunner

    from shoal.cli import app

    result = CliRunner().invoke(app, ["simulate", str(spec), "--out", str(out / "pages"), "--json"])
    assert result.exit_code == 0, result.output
    for folder in sorted((out / "pages").glob("spec-*")):
        name = folder.name.replace("spec-", "simulated-")
        target = out / name
        shutil.copytree(folder, target)
        scrub(target)
        store(
            name,
            target,
            {
                "made": COMMIT,
                "status": kit.status(target),
                "page": kit.page(target, out / "page.html"),
            },
        )


# -- storing
# ----------------------------------------------------------------------------------------------


def scrub(folder: Path) -> None:
    """Leave out what no later run reads, and the names of this machine."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name in LEFT_OUT and path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    here = str(Path(__file__).parent.resolve())
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".jsonl", ".json", ".toml"):
            text = path.read_bytes().decode()
            for name in {platform.node(), platform.node().split(".")[0]}:
                text = text.replace(f'"{name}"', '"here"').replace(f'"{name}:', '"here:')
            text = text.replace(here, "/home/user").replace(str(folder.parent), "/home/user")
            path.write_bytes(_resealed(text.encode()))
    places = (here, tempfile.gettempdir(), sys.prefix, str(Path.home()))
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        found = [place for place in places if place.encode() in content]
        assert not found, f"{path} names {found}"


def _resealed(text: bytes) -> bytes:
    """With checksums of the lines as they are now."""
    lines = text.splitlines(keepends=True)
    body = [line.rpartition(b',"n":')[0] + b"}\n" if b',"c":"' in line else b"" for line in lines]
    return b"".join(
        sealed(each, at + 1) if each else line
        for at, (line, each) in enumerate(zip(lines, body, strict=True))
    )


def store(name: str, folder: Path, said: dict[str, Any]) -> None:
    """The archive, and what was said of the study in it."""
    with tarfile.open(kit.STORED / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder)}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(said[key])}" for key in said)
    (kit.STORED / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """What this code says of the study, and of a copy of it once that was resumed."""
    made = shoal.load_study(folder)
    planned = [line.entry for line in made.lines() if isinstance(line.entry, Planned)]
    opened = [line.entry for line in made.lines() if isinstance(line.entry, Opened)][-1]
    copy = folder.parent / "resumed" / name
    said = {
        "made": OF_CODE if name.startswith("code-") else COMMIT,
        "python": platform.python_version(),
        "source": opened.head["recipe"].get("stored") == "source",
        "numerics": kit.numerics(),
        "recipe": opened.head["recipe"]["name"],
        "attributes": {
            key: value
            for key, value in vars(made.recipe).items()
            if isinstance(value, (int, type(None)))
        },
        "ray": opened.head["backend"] == "ray",
        "fused": any(gang.fused for plan in planned for gang in plan.start),
        "wide": any(
            len(lane.slots) > 1 for plan in planned for gang in plan.start for lane in gang.lanes
        ),
        "story": kit.story(made),
        "record": kit.record(made),
        "status": kit.status(folder),
        "weights": kit.weights(made),
        "best": {trial: best["sha256"] for trial, best in kit.weights(made, "best").items()},
        "replay": kit.plain(kit.replay(made)),
        "page": kit.page(folder, folder.parent / "page.html"),
    }
    shutil.copytree(folder, copy)
    made = shoal.load_study(copy)
    made.resume(progress=False)
    resumed = {
        "story": kit.story(made),
        "weights": kit.weights(made),
        "replay": kit.plain(kit.replay(made)),
    }
    return said | {
        "resumed": {key: kit.SAME if item == said[key] else item for key, item in resumed.items()}
    }


def main(wanted: list[str]) -> None:
    """All kinds, or those."""
    os.chdir(kit.STORED)  # where the given profile is found by its name alone
    for name, make in KINDS.items():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place).resolve() / name
            make(folder)
            os.chdir(kit.STORED)
            scrub(folder)
            said = outcome(name, folder)
            shutil.rmtree(folder / "trials", ignore_errors=True)
            store(name, folder, said)
        size = sum((kit.STORED / f"{name}.{end}").stat().st_size for end in ("tar.xz", "json"))
        replays = [row["equal"] or row["fused"] or row["wide"] for row in said["replay"]]
        sys.stdout.write(f"{name}: {size / 1000:.0f} kB, {said['status']['trials']}, {replays}\n")
    if not wanted or "held" in wanted:
        held()
    if not wanted or "named" in wanted:
        named()
    if not wanted or "simulated" in wanted:
        with tempfile.TemporaryDirectory() as place:
            simulate(Path(place).resolve())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        os.chdir(kit.STORED)
        to_be_killed(Path(sys.argv[2]))
    else:
        main(sys.argv[1:])
