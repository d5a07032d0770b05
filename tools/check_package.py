"""Build the package, install it outside of the checkout, and use it there: `make package`.

The sdist is built from a clean copy of the tracked files, the wheel from the sdist. Both are left
in `dist/`, with nothing else. Each extra is installed alone, in an environment of its own that sees
the packages of the one without extras. `--only NAME…` looks at these extras alone; `--no-extras` at
none. Exits with 1 if anything fails; prints how long each step took.
"""

import argparse
import http.cookiejar
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
DIST = ROOT / "dist"
LARGEST = 2_000_000  # bytes of the report of a small study
PATIENCE = 300  # seconds for a command
DOWNLOAD = 1800  # for an installation: PyTorch with CUDA has gigabytes
# Tracked files that the sdist lacks: what only a repository needs.
LEFT_OUT = (".ci/", ".git", ".pre-commit-config.yaml")
POINTS = '''
import shoal, torch
from torch import nn


class Points(shoal.Recipe):
    """Which of two halves a point lies in."""

    batch_size = 32
    metric = "accuracy"
    mode = "max"
    max_epochs = 2
    search_space = {"lr": shoal.loguniform(1e-3, 1e-1)}

    def data(self):
        points = torch.rand(400, 2, generator=torch.Generator().manual_seed(0))
        return shoal.Data.arrays(points, (points[:, 0] > 0.5).long(), validation=0.25)

    def configure_model(self, config):
        return nn.Linear(2, 2)

    def configure_optimizers(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}
'''
MODULE = '''
import lightning, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal


class Half(lightning.LightningModule):
    """Which of two halves a point lies in."""

    def __init__(self, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    def train_dataloader(self):
        points = torch.rand(400, 2)
        return DataLoader(TensorDataset(points, (points[:, 0] > 0.5).long()), batch_size=32)

    val_dataloader = train_dataloader


recipe = shoal.lightning(
    Half,
    search_space={"lr": shoal.loguniform(1e-3, 1e-1)},
    metric="val_acc",
    mode="max",
    max_epochs=2,
)
'''
TABLE = """
from pathlib import Path

import shoal

lines = [f"{n},{n % 2}" for n in range(100)]
Path("table.csv").write_text("size,label\\n" + "\\n".join(lines))
print(shoal.Data.csv("table.csv", label="label"))
"""
NOTEBOOK = """
import ipykernel.kernelapp, tqdm.auto
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
cell = "import shoal; print(shoal.load_study('runs/spirals').best_value)"
shell.run_cell(cell).raise_error()
"""


class CheckError(Exception):
    """A step found a fault."""


class Place:
    """An environment outside of the checkout, and a folder to work in."""

    def __init__(self, folder: Path, base: "Place | None" = None) -> None:
        venv.create(folder / "venv")  # pip of this Python installs into it
        self.python = folder / "venv" / "bin" / "python"
        (self.packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        self.work = folder / "work"
        if base is None:
            self.work.mkdir()
        else:
            (self.packages / "base.pth").write_text(f"{base.packages}\n")
            shutil.copytree(base.work, self.work)
            for path in base.python.parent.glob("shoal"):
                text = path.read_text().replace(str(base.python), str(self.python))
                (self.python.parent / "shoal").write_text(text)
                (self.python.parent / "shoal").chmod(0o755)

    def install(self, *packages: str) -> None:
        """Install these, in the versions of constraints.txt."""
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--no-compile")
        quiet = ("--quiet", "--disable-pip-version-check")
        run(self.work, *pip, *quiet, "-c", CONSTRAINTS, *packages, patience=DOWNLOAD)

    def run(self, *command: str | Path) -> str:
        """Run the command here; returns what it prints.

        Raises:
            CheckError: its exit status is not 0.
        """
        return run(self.work, *command, path=self.python.parent)

    def shoal(self, *words: str | Path) -> str:
        """Run a command of Shoal's."""
        return self.run(self.python.parent / "shoal", *words)


def run(
    folder: Path, *command: str | Path, path: Path | None = None, patience: float = PATIENCE
) -> str:
    """Run a command in that folder, in an environment that knows of no checkout."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "WANDB_MODE": "offline"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        timeout=patience,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        typed = " ".join(str(word) for word in command)
        raise CheckError(f"{typed}\n{done.stdout[-3000:]}exit status {done.returncode}")
    return done.stdout


def need(fits: bool, fault: str) -> None:
    """Raise CheckError unless it fits."""
    if not fits:
        raise CheckError(fault)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say how long it took, and how many seconds of a processor."""
    begun, used = time.monotonic(), processor_seconds()
    try:
        yield
    finally:
        took, used = time.monotonic() - begun, processor_seconds() - used
        print(f"{took:6.1f} s ({used:5.1f} of a processor)  {name}", flush=True)


def processor_seconds() -> float:
    """What this process and those that it has waited for took."""
    return sum(os.times()[:4])


# -- what is built ---------------------------------------------------------------------------------


def tracked() -> list[str]:
    """The files of the repository, as they are in the working tree; new ones after `git add`."""
    listed = run(ROOT, "git", "ls-files")
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def build(folder: Path, names: Sequence[str]) -> tuple[Path, Path]:
    """Build both from a copy; returns the sdist and the wheel."""
    source = folder / "source"
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    made = folder / "dist"
    run(folder, sys.executable, "-m", "build", "--outdir", made, source)
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    return sdist, wheel


def check_files(sdist: Path, wheel: Path, names: Sequence[str]) -> None:
    """Each has all tracked files that belong into it, and no others."""
    with zipfile.ZipFile(wheel) as opened:
        inside = {name for name in opened.namelist() if ".dist-info/" not in name}
    wanted = {name for name in names if name.startswith("shoal/")}
    need(wanted == inside, f"the wheel lacks {wanted - inside}, has besides {inside - wanted}")
    with tarfile.open(sdist) as opened:
        files = [member.name for member in opened if member.isfile()]
    inside = {name.partition("/")[2] for name in files}
    wanted = {name for name in names if not name.startswith(LEFT_OUT)}
    made = {name for name in inside if ".egg-info/" in name or name in ("PKG-INFO", "setup.cfg")}
    others = inside - wanted - made
    need(
        wanted <= inside and not others, f"the sdist lacks {wanted - inside}, has besides {others}"
    )


def size(folder: Path) -> float:
    """The MB of what is in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


# -- what is used ----------------------------------------------------------------------------------


def check_base(place: Place) -> None:
    """Shoal without any extra: README's example as it is pasted, and the commands around it."""
    where = place.run(place.python, "-c", "import shoal; print(shoal.__file__)")
    need(str(place.packages) in where, f"another Shoal was imported: {where}")
    need(re.fullmatch(r"shoal \d+\.\d+\.\d+\n", place.shoal("--version")) is not None, "version")
    need("pip install 'shoal[ray]'" in place.shoal("doctor"), "doctor names no extra to install")
    readme = (ROOT / "README.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\n.*?```\n(.*?)```", readme, re.DOTALL).groups()
    (place.work / "spirals.py").write_text(code)
    said = place.run(place.python, "spirals.py")
    need(printed in said, f"README says that its example prints {printed!r}; it printed {said!r}")
    need("spirals" in place.shoal("status", "runs/spirals"), "status does not name the study")
    place.shoal("report", "runs/spirals", "--out", "report.html")
    report = (place.work / "report.html").read_text()
    need("plotly.js v" in report and "<style>" in report, "the report lacks its script or style")
    need(len(report) < LARGEST, f"the report has {len(report)} bytes")


def check_ui(place: Place) -> None:
    """The live page, its script, and the script that draws are served."""
    process = subprocess.Popen(
        [place.python.parent / "shoal", "ui", "runs/spirals", "--port", "0"],
        cwd=place.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = None
        said = ""
        for line in process.stdout:
            said += line
            if address := re.search(r"http://\S+", line):
                break
        need(address is not None, f"shoal ui ended: {said}")
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        opener = urllib.request.build_opener(jar)
        page = address[0].partition("#")[0]
        opener.open(page).read()
        for name in ("plotly.js", "ui.js", "ui.css", "page.css"):
            read = opener.open(f"{page.partition('?')[0]}static/{name}").read()
            need(len(read) > 1000, f"{name} is empty")
    finally:
        process.terminate()
        process.wait(30)


def trained(*more: str) -> Callable[[Place], None]:
    """A check that trains the small recipe, with these options."""

    def check(place: Place) -> None:
        said = place.shoal("run", "points.py", "--num-samples", "2", *more)
        need("2 finished" in said, f"no two trials finished: {said}")

    return check


def logged(name: str, pattern: str) -> Callable[[Place], None]:
    """A check that the logger writes such a file."""

    def check(place: Place) -> None:
        trained("--logger", name)(place)
        need(any((place.work / "runs").glob(f"*/{pattern}")), f"{name} wrote no {pattern}")

    return check


def python(code: str, says: str) -> Callable[[Place], None]:
    """A check that runs this code."""

    def check(place: Place) -> None:
        said = place.run(place.python, "-c", code)
        need(says in said, f"no {says!r} in {said!r}")

    return check


def check_huggingface(place: Place) -> None:
    """An example's BERT of a small configuration."""
    shutil.copy(ROOT / "examples" / "door" / "bert_classifier.py", place.work)
    place.run(place.python, "-c", "import datasets")
    said = place.shoal("run", "bert_classifier.py", "--max-epochs", "1")
    need("4 finished" in said, said)


def check_lightning(place: Place) -> None:
    """A LightningModule that is a recipe."""
    (place.work / "module.py").write_text(MODULE)
    need("2 finished" in place.shoal("run", "module.py", "--num-samples", "2"), "no trials")


def check_examples(place: Place) -> None:
    """The first recipe of the documentation."""
    shutil.copy(ROOT / "examples" / "digits.py", place.work)
    need("16 finished" in place.shoal("run", "digits.py", "--max-epochs", "1"), "no trials")


EXTRAS: dict[str, Callable[[Place], None]] = {  # those that take longest first
    "huggingface": check_huggingface,
    "lightning": check_lightning,
    "mlflow": logged("mlflow", "mlflow/mlflow.db"),
    "wandb": logged("wandb", "wandb/wandb/offline-run-*"),
    "tensorboard": logged("tensorboard", "tensorboard/*/events*"),
    "notebook": python(NOTEBOOK, "1.0"),
    "examples": check_examples,
    "parquet": python(TABLE, "80 training samples"),
    "optuna": trained("--searcher", "optuna"),
    "ui": check_ui,
    "ray": trained("--backend", "ray", "--slots", "2"),
}


def check_extra(name: str, folder: Path, base: Place, wheel: Path) -> str | None:
    """Install the extra alone, and use it; returns what is wrong."""
    begun = time.monotonic()
    try:
        place = Place(folder / name, base)
        place.install(f"{wheel}[{name}]")
        installed = time.monotonic()
        EXTRAS[name](place)
        took, used = installed - begun, time.monotonic() - installed
        mb = size(place.packages)
        print(f"{took + used:6.1f} s  [{name}]: {took:.1f} to install {mb:.0f} MB", flush=True)
    except (CheckError, subprocess.TimeoutExpired) as error:
        print(f"{time.monotonic() - begun:6.1f} s  [{name}]: FAILED, see below", flush=True)
        return f"[{name}]: {error}"
    return None


def check_sdist(sdist: Path, folder: Path) -> None:
    """Tests of the sdist run, with their helpers; with the packages of this Python."""
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    run(source, sys.executable, "-m", "pytest", "tests/core", "tests/test_package.py")


def main() -> int:
    """Build, install and use it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(EXTRAS), choices=list(EXTRAS))
    parser.add_argument("--no-extras", dest="only", action="store_const", const=[])
    asked = parser.parse_args()
    with step("in all"), tempfile.TemporaryDirectory(prefix="shoal-package-") as made:
        folder = Path(made)
        try:
            names = tracked()
            with step("build the sdist, and the wheel from it"):
                sdist, wheel = build(folder, names)
            with step("the files in both, and what a registry says of them"):
                check_files(sdist, wheel, names)
                run(folder, sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
            with step("tests of the sdist"):
                check_sdist(sdist, folder)
            with step("an empty environment"):
                base = Place(folder / "base")
                (base.work / "points.py").write_text(POINTS)
            with step("PyTorch"):
                base.install("torch")
            torch = size(base.packages)
            with step("Shoal and the rest of what it needs"):
                base.install(str(wheel))
            rest = size(base.packages) - torch
            print(f"          wheel {wheel.stat().st_size / 1e6:.2f} MB, sdist", end=" ")
            print(f"{sdist.stat().st_size / 1e6:.2f} MB; {rest:.0f} MB besides PyTorch's", end=" ")
            print(f"{torch:.0f} MB", flush=True)
            with step("use it without extras"):
                check_base(base)
            with step("all extras"), ThreadPoolExecutor(2) as threads:
                others = [name for name in asked.only if name != "ray"]
                found = [*threads.map(lambda name: check_extra(name, folder, base, wheel), others)]
                if "ray" in asked.only:  # alone: Ray gives up on a machine that is slow to start it
                    found.append(check_extra("ray", folder, base, wheel))
                faults = [fault for fault in found if fault]
            shutil.rmtree(DIST, ignore_errors=True)  # one of before would be uploaded with them
            shutil.copytree(sdist.parent, DIST)
        except (CheckError, subprocess.TimeoutExpired) as error:
            faults = [str(error)]
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
