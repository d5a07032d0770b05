"""What the stored studies (tests/stored) and their test share: where they lie, and digests that
do not depend on wording.
"""

import hashlib
import json
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html.parser import HTMLParser
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import shoal
from shoal import reporting
from shoal.core.event import Evaluated
from shoal.study.code import mark, recipe_store

STORED = Path(__file__).parent / "stored"
NEAR = 1e-6  # relative difference of two figures that count as the same
ROUNDED = 0.05  # where training was rounded otherwise: on another machine, or on several slots
BITS = (
    "sha256",
    "equal",
    "difference",
)  # keys of what is the same only where training is rounded alike
DRAWN = (
    "x",
    "y",
    "base",
    "width",
    "values",
    "times",
)  # what a figure's traces draw, without their looks
SAME = "the same"  # of what resuming a finished study leaves as it is
WORDS = ("why", "how", "elsewhere")  # keys whose values are prose


def names() -> list[str]:
    """All stored studies."""
    return sorted(path.name.removesuffix(".tar.xz") for path in STORED.glob("*.tar.xz"))


def expected(name: str) -> dict[str, Any]:
    """What the code that wrote the study said of it."""
    found: dict[str, Any] = json.loads((STORED / f"{name}.json").read_text())
    return {"source": False, **found}


def unpack(name: str, where: Path) -> Path:
    """The study's folder, unpacked there."""
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / name


def marked(folder: Path) -> None:
    """The study's recipe becomes one that this user has made."""
    kept = recipe_store.read_manifest(folder)
    assert kept is not None
    kept.write(mark.make_key(), mark.MADE)


def loaded(folder: Path, then: Mapping[str, Any], own: bool = False) -> shoal.Study:
    """The study there; `own`: its recipe is marked as this user's.

    Code that was pickled by value can be read by the same Python only: with another, the recipe's
    file is given.
    """
    if then["source"] or same_python(then):
        return shoal.load_study(folder, trust=not own)  # no user has marked it
    recipe = getattr(recipes(), then["recipe"])()
    vars(recipe).update(then["attributes"])
    return shoal.create_study(recipe, storage=folder, load_if_exists=True, seed=7)


def same_python(then: Mapping[str, Any]) -> bool:
    """Whether this Python reads what was pickled with that one."""
    return bool(then["python"].split(".")[:2] == platform.python_version().split(".")[:2])


def recipes() -> ModuleType:
    """The recipes' module, as `shoal run` imports it."""
    name = "shoal_recipe_recipe"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = "/home/user/recipe.py"  # pickles name it: no place of this machine
        sys.modules[name] = module
        exec(compile((STORED / "recipe.py").read_text(), "recipe.py", "exec"), module.__dict__)
    return sys.modules[name]


# -- digests
# ----------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """As JSON gives it back: numbers with ten digits, those that JSON lacks as text; without
    prose.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if key not in WORDS}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.10g}") if isfinite(value) else repr(value)
    return value


def is_function(study: shoal.Study) -> bool:
    """Whether it trains a function, of which there is no model, and no step to be made again."""
    return hasattr(study.recipe, "function")


def replay(study: shoal.Study) -> list[Any]:
    """What `replay` says; nothing of a function."""
    return [] if is_function(study) else study.replay()


def replayed(study: shoal.Study, then: Iterable[Mapping[str, Any]], alike: bool) -> Any:
    """What `replay` says now and said then, of what both say.

    `alike`: sums are rounded here as they were then, so that nothing may differ.
    """
    rows = replay(study)
    wrong = {"differs", "missing"} if alike else {"missing"}
    assert not {row["verdict"] for row in rows} & wrong, rows
    both = ("trial", "visits", "equal", "difference", "fused", "wide")
    return (
        plain([{key: row[key] for key in both} for row in rows]),
        [{key: row[key] for key in both} for row in then],
    )


def story(study: shoal.Study) -> dict[str, Any]:
    """What became of each trial: where the order of visits is fixed beforehand, the same
    whenever it is trained.
    """
    found = {}
    trained = {
        name for _, entry in study.lines() if isinstance(entry, Evaluated) for name in entry.trained
    }
    for trial in study.trials:
        known = study.state.known[trial.id]
        found[trial.id] = {
            "config": trial.config,
            "status": trial.status,
            "epochs": trial.epochs,
            "samples": [trial.samples, known.samples],
            "widths": known.widths,
            "shards": sorted(known.shards),
            "start": known.start,
            "priority": known.priority,
            "scores": [
                (epoch, {name: values[name] for name in values if name not in trained})
                for epoch, values in trial.scores
            ],
            "value": [trial.value, trial.best_value],
            "visits": [
                visit if visit.beside else visit[:-1] for visit in study.state.visits[trial.id]
            ],
        }
    told: dict[str, Any] = plain(found)
    return told


def record(study: shoal.Study) -> dict[str, Any]:
    """What the fold of the journal holds beside its trials."""
    state = study.state
    found = {
        "entries": len(study.lines()),
        "run": state.run,
        "turn": state.turn,
        "shards": dict(state.shards),
        "slots": sorted(state.slots),
        "kept": {
            trial: [kept.visits, kept.samples, kept.name] for trial, kept in state.kept.items()
        },
        "memory": dict(state.memory),
        "running": {trial: sorted(gang.slots) for trial, gang in state.running.items()},
        "pending": {trial: sorted(left) for trial, left in state.pending.items()},
        "figures": {signature: dict(figures) for signature, figures in state.figures.items()},
        "stopped": state.stopped,
    }
    told: dict[str, Any] = plain(found)
    return told


def data_read(data: shoal.Data) -> dict[str, Any]:
    """What data holds: the sums of every column of every part."""
    read = {}
    for part in (*data.shards, *data.validation):
        columns = data.read(part)
        named = columns.items() if isinstance(columns, Mapping) else enumerate(columns)
        read[part] = {str(name): [len(column), float(np.sum(column))] for name, column in named}
    told: dict[str, Any] = plain(
        {"fingerprint": data.fingerprint, "chunk": data.chunk, "parts": read}
    )
    return told


# What the status and the page say since the stored studies were digested.
SAID_SINCE = frozenset(
    [
        "dealt_bytes",
        "entries",
        "formed",
        "harvest",
        "idle",
        "rescales",
        "shares",
        "since",
        "starting",
        "unit",
        "waiting",
    ]
)
SHOWN_SINCE = frozenset(["harvest", "overhead"])


def status(folder: Path) -> dict[str, Any]:
    """What `shoal status --json` says, without its prose."""
    found: dict[str, Any] = plain(reporting.summary(shoal_lines(folder)))
    if found["policy"]:
        found["policy"].pop("objective", None)
    if found["throughput"]:  # the wait for slots counted, too
        found["throughput"] *= 1 - found["starting"] / found["seconds"]
    return {key: item for key, item in found.items() if key not in SAID_SINCE}


def shoal_lines(folder: Path) -> list[Any]:
    """The journal's lines."""
    from shoal.engine.journal import read

    return list(read(folder / "journal.jsonl"))


def weights(study: shoal.Study, which: str = "last") -> dict[str, Any]:
    """Of each trial with a durable state: a hash of its model's parameters, and figures to
    compare them by where bits differ.
    """
    found = {}
    for trial in () if is_function(study) else study.state.kept:
        model = study.load_model(trial, which)
        state = model if isinstance(model, dict) else model.state_dict()
        arrays = {name: np.asarray(value) for name, value in state.items()}
        whole = hashlib.sha256()
        for name, array in arrays.items():
            whole.update(name.encode() + np.ascontiguousarray(array).tobytes())
        sums = {
            name: [float(array.sum()), float(np.abs(array).sum())] for name, array in arrays.items()
        }
        found[trial] = {"sha256": whole.hexdigest(), "sums": plain(sums)}
    return found


@cache
def numerics() -> set[str]:
    """Hashes of what this machine makes of a small training: with torch, and with numpy alone.

    A stored study has the one of what its recipe trains with. Equal hashes promise equal bits.
    """
    return {_torch_numerics(), _numpy_numerics()}


def _torch_numerics() -> str:
    torch.manual_seed(5)
    inputs, labels = torch.randn(64, 5), torch.arange(64) % 3
    hashed = hashlib.sha256()
    for width, kind in ((3, torch.float32), (5, torch.float32), (5, torch.float64)):
        model = torch.nn.Sequential(
            torch.nn.Linear(5, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(width, 3),
        )
        model.to(kind)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for batch in range(20):
            chosen = slice(16 * (batch % 4), 16 * (batch % 4) + 10 + batch % 7)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                model(inputs[chosen].to(kind)), labels[chosen]
            ).backward()
            optimizer.step()
        for parameter in model.parameters():
            hashed.update(parameter.detach().numpy().tobytes())
    return hashed.hexdigest()


def _numpy_numerics() -> str:
    """NumPy's BLAS chooses its sums by the processor's model, torch's by its instructions."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 5)).astype("float32")
    y = rng.integers(0, 3, 30).astype("float32")
    line = np.zeros(5)
    for batch in range(40):
        chosen = slice(batch % 16, batch % 16 + 2 + batch % 13)
        line += 0.1 * (y[chosen] - x[chosen] @ line) @ x[chosen] / len(y[chosen])
    return hashlib.sha256(line.tobytes()).hexdigest()


# -- the report
# ----------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """The parts of a report: the tables of each section, cell by cell, and the drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.drawings = ""
        self._section = ""
        self._drawing = False
        self._keyless = False  # in a cell whose text is what it is sorted by

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("tr", "section", "table"):
            self._keyless = False  # a cell's end tag may be left out
        if tag == "section":
            self._section = given.get("id") or ""
            self.tables[self._section] = []
        elif tag == "tbody":
            self.tables[self._section].append([])
        elif tag == "tr" and self.tables.get(self._section):
            self.tables[self._section][-1].append([])
        elif tag == "td":
            self.tables[self._section][-1][-1].append(given.get("data-k") or "")
            self._keyless = (
                "data-k" not in given and self._section != "next"
            )  # commands, no figures
        self._drawing = tag == "script" and given.get("id") == "drawings"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "tr", "tbody", "table"):
            self._keyless = False

    def handle_data(self, data: str) -> None:
        if self._keyless:
            self.tables[self._section][-1][-1][-1] += data
        if self._drawing:
            self.drawings += data


def page(folder: Path, out: Path) -> dict[str, Any]:
    """The report as data: the numbers and names in its tables, and what its figures draw."""
    written = reporting.write(folder / "journal.jsonl", out)
    parser = _Page()
    parser.feed(re.sub(r"<script>.*?</script>", "", written.read_text(), flags=re.DOTALL))  # plotly
    known = set(_names_in(shoal_lines(folder)))
    tables = {
        section: [[[_cell(cell, known) for cell in row] for row in rows if row] for rows in found]
        for section, found in parser.tables.items()
        if section not in SHOWN_SINCE
    }
    return {"tables": plain(tables), "drawings": plain(_drawn(json.loads(parser.drawings)))}


def _names_in(lines: Iterable[Any]) -> Iterator[str]:
    """Of trials, slots and signatures."""
    for _, entry in lines:
        trial, slots = getattr(entry, "trial", None), getattr(entry, "slots", ())
        if trial is not None:
            yield getattr(trial, "id", trial)
        yield from (slot.id for slot in slots if hasattr(slot, "id"))
        yield getattr(entry, "signature", "")


def _cell(text: str, known: set[str]) -> Any:
    """A number or a known name; None for anything else, which is prose."""
    try:
        return float(text)
    except ValueError:
        return text if text in known else None


def _drawn(value: Any, within: bool = False) -> Any:
    """Of drawings, the arrays of numbers (and of names) that are drawn."""
    if isinstance(value, list):
        return [_drawn(item, within) for item in value]
    if not isinstance(value, dict):
        return value if within else None
    kept = {
        key: _drawn(item, within or key in DRAWN)
        for key, item in value.items()
        if key not in ("layout", "text")
    }
    return {key: item for key, item in kept.items() if _worth(item)}


def _worth(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return any(map(_worth, value.values() if isinstance(value, dict) else value))
    return value is not None


# -- comparing
# ----------------------------------------------------------------------------------------------


def differences(now: Any, then: Any, exact: bool = True, path: str = "") -> Iterator[str]:
    """Where two digests differ, one line each; unless `exact`, beyond what rounding makes of a
    short training.
    """
    if isinstance(now, dict) and isinstance(then, dict):
        for key in sorted(now.keys() | then.keys()):
            if key not in now or key not in then:
                yield f"{path}.{key}: {'is new' if key in now else 'is missing'}"
            elif exact or key not in BITS:
                yield from differences(now[key], then[key], exact, f"{path}.{key}")
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for at, (one, other) in enumerate(zip(now, then, strict=True)):
            yield from differences(one, other, exact, f"{path}[{at}]")
    elif not _same(now, then, NEAR if exact else ROUNDED):
        yield f"{path}: {now!r:.300}, stored {then!r:.300}"


def _same(now: Any, then: Any, near: float) -> bool:
    if not _is_number(now) or not _is_number(then):
        return bool(now == then)
    return abs(now - then) <= near * max(abs(now), abs(then), 1e-3)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
