"""What trials share beside their models, and steps change later than the rehearsal sees it."""

import functools
import itertools
import random
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.train.recipe.recipe_code import is_only_added_to
from shoal.train.slot import shared_state
from shoal.train.slot.shared_state import RecipeSharing

HISTORY: list[float] = []
AVERAGE = {"loss": 0.0}
NUMBERS = np.random.default_rng(0)
TORCH_NUMBERS = torch.Generator()
PYTHON_NUMBERS = random.Random(0)
TABLE = np.zeros(100)
LARGE = torch.zeros(5_000_000)
LARGE_LIST = [0] * 20_000
SETTINGS = SimpleNamespace(steps=0)
TURNS = itertools.cycle([1.0, 2.0])
count = 0


class Tally:
    """Counts on itself, or on its class."""

    shared = 0
    later: float

    def __init__(self) -> None:
        self.own = 0

    def add(self) -> int:
        self.own += 1
        return self.own

    @staticmethod
    def add_later() -> float:
        Tally.later = getattr(Tally, "later", 0.0) + 1
        return float(Tally.later)

    @staticmethod
    def add_to_class() -> int:
        Tally.shared += 1
        return Tally.shared


class Backbone(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


TALLY = Tally()
BACKBONE = Backbone()
NORM = nn.BatchNorm1d(5)


def grown() -> float:
    HISTORY.append(1.0)
    return float(len(HISTORY))


def counted() -> float:
    global count  # noqa: PLW0603
    count += 1
    return float(count)


def averaged() -> float:
    AVERAGE["loss"] = 0.9 * AVERAGE["loss"] + 0.1
    return AVERAGE["loss"]


def set_somewhere() -> float:
    LARGE[::100] += 1.0
    return float(LARGE[0])


def set_in_table() -> float:
    TABLE[3] += 1
    return float(TABLE[3])


def set_in_list() -> float:
    LARGE_LIST[0] += 1
    return LARGE_LIST[0]


def set_in_settings() -> float:
    SETTINGS.steps += 1
    return float(SETTINGS.steps)


def noting() -> float:
    """Counts on itself."""
    noting.calls = getattr(noting, "calls", 0) + 1  # type: ignore[attr-defined]
    return float(noting.calls)  # type: ignore[attr-defined]


def normed() -> float:
    return float(NORM(torch.ones(2, 5)).sum())


# changes of what lies beside the recipe's code, and the name in the warning
VARIABLES: dict[str, Callable[[], float]] = {
    "HISTORY": grown,
    "count": counted,
    "AVERAGE": averaged,
    "NUMBERS": lambda: float(NUMBERS.random()),
    "TORCH_NUMBERS": lambda: float(torch.rand((), generator=TORCH_NUMBERS)),
    "PYTHON_NUMBERS": lambda: float(PYTHON_NUMBERS.random()),
    "TABLE": set_in_table,
    "LARGE": set_somewhere,
    "LARGE_LIST": set_in_list,
    "SETTINGS": set_in_settings,
    "TALLY": lambda: float(TALLY.add()),
    "Tally.shared": lambda: float(Tally.add_to_class()),
    "Tally.later": lambda: Tally.add_later(),  # noqa: PLW0108
    "noting.calls": lambda: noting(),  # noqa: PLW0108
    "BACKBONE": lambda: float(BACKBONE(torch.ones(()))),
    "NORM": normed,
    "TURNS": lambda: next(TURNS),
}


def _added(held: Any) -> float:
    held.append(1.0)
    return float(len(held))


def _raised(held: Any) -> float:
    held[0] += 1
    return float(held[0])


# what a recipe holds, and how steps change it
ATTRIBUTES: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "list": (list, _added),
    "full deque": (lambda: deque([0.0] * 3, maxlen=3), _raised),
    "tensor": (lambda: torch.zeros(3), _raised),
    "large tensor": (lambda: torch.zeros(5_000_000), _raised),
    "large list": (lambda: [0] * 20_000, _added),
    "large dict": (lambda: dict.fromkeys(range(20_000), 0), _raised),
    "object": (Tally, lambda held: float(held.add())),
}


@pytest.fixture(autouse=True)
def looks_after_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "RARELY", 0)


class Late:
    """A recipe's steps, which change something in their second epoch."""

    change: Any = None
    in_validation = False
    held: Any = None

    def _factor(self, epoch: int, validation: bool) -> float:
        if epoch < 1 or validation != self.in_validation:
            return 1.0
        change: Any = type(self).change
        return 1.0 + 0.1 * float(change(*([] if self.held is None else [self.held])))

    def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss * self._factor(epoch, validation=False)

    def validation_step(self, model: Any, batch: Any, epoch: int) -> Any:
        right = (model(batch[0]).argmax(1) == batch[1]).float()
        return {"accuracy": right * self._factor(epoch, validation=True)}


def warned(recipe: shoal.Recipe, folder: Path, **asked: Any) -> list[str]:
    """What a study of the recipe warns of."""
    space = asked.pop("space", {"width": 4, "lr": shoal.grid([0.01, 0.001])})
    study = shoal.create_study(recipe, storage=folder / "s", search_space=space)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        study.optimize(**{"max_epochs": 4, "progress": False, **asked})
    return [str(each.message) for each in found if each.category is UserWarning]


def changes(texts: list[str]) -> str:
    """What it says that training changes, each thing once."""
    found = [text for text in texts if text.startswith("training changes what ")]
    assert all("on its model" in text and "epoch and step" in text for text in found)
    names = [
        name
        for text in found
        for name in text.removeprefix("training changes what ").partition(" holds. ")[0].split(", ")
    ]
    assert len(names) == len(set(names))
    return ", ".join(sorted(names))


@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "fifo") for name in VARIABLES), ("HISTORY", "pack")]
)
def test_a_variable_that_steps_change_late_is_warned_of(
    tmp_path: Path, blobs: Any, name: str, policy: str
) -> None:
    class Recipe(Late, blobs):  # type: ignore[misc,valid-type]
        change = VARIABLES[name]

    told = changes(warned(Recipe(), tmp_path, policy=policy))
    assert told == f"{__name__}.{name}"


@pytest.mark.parametrize("in_validation", [False, True])
@pytest.mark.parametrize("case", ATTRIBUTES)
def test_an_attribute_that_steps_change_late_is_warned_of(
    tmp_path: Path, blobs: Any, case: str, in_validation: bool
) -> None:
    make, change = ATTRIBUTES[case]

    class Recipe(Late, blobs):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.held = make()
            self.in_validation = in_validation

    Recipe.change = change
    assert changes(warned(Recipe(), tmp_path)) == "self.held of Recipe"


def test_a_variable_of_a_function_around_the_recipe(tmp_path: Path, blobs: Any) -> None:
    seen: list[int] = []

    class Recipe(blobs):  # type: ignore[misc,valid-type]
        shared = 0

        def training_step(self, model: Any, batch: Any) -> Any:
            seen.append(1)
            type(self).shared += 1
            return super().training_step(model, batch) * (1 + 0.01 * len(seen) + self.shared)

    told = changes(warned(Recipe(), tmp_path))
    assert told.startswith("self.shared of Recipe, ")
    assert told.endswith(".training_step.seen")


def test_variables_of_each_function_that_a_decorator_makes(tmp_path: Path, blobs: Any) -> None:
    def counting(method: Any) -> Any:
        calls = 0

        def wrapper(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            made = method(*given)
            return made * (1 + 0.01 * calls) if given[-1] == "train" else made

        return wrapper

    first = counting(lambda loss, _: loss)
    second = counting(lambda score, _: score * (1 + grown()))

    class Recipe(blobs):  # type: ignore[misc,valid-type]
        def training_step(self, model: Any, batch: Any) -> Any:
            return first(super().training_step(model, batch), "train")

        def validation_step(self, model: Any, batch: Any) -> Any:
            return {"accuracy": second(torch.ones(len(batch[0])), "score")}

    told = changes(warned(Recipe(), tmp_path))
    assert told.count("counting.<locals>.wrapper.calls") == 2
    assert f"{__name__}.HISTORY" in told


def test_each_recipe_of_several_is_looked_at(tmp_path: Path, blobs: Any) -> None:
    class One(Late, blobs):  # type: ignore[misc,valid-type]
        change = VARIABLES["HISTORY"]

    class Other(blobs):  # type: ignore[misc,valid-type]
        pass

    study = shoal.create_study(
        {"a": Other(), "b": One()}, storage=tmp_path / "s", metric="accuracy", mode="max"
    )
    with pytest.warns(UserWarning, match=r"changes what .*HISTORY holds"):
        study.optimize(max_epochs=3, progress=False)


# -- what is no matter -----------------------------------------------------------------------------


LINES: list[float] = []
ROWS: dict[str, list[float]] = defaultdict(list)
MASKS: dict[int, torch.Tensor] = {}
RECENT: "OrderedDict[int, int]" = OrderedDict()
SEEN: set[str] = set()
NAN = float("nan")
calls = 0
_made: Any = None


@functools.lru_cache(maxsize=2)
def table(size: int) -> torch.Tensor:
    return torch.ones(size, 1)


def scale() -> torch.Tensor:
    """A number that is made when it is first asked for."""
    global _made  # noqa: PLW0603
    if _made is None:
        _made = torch.ones(())
    return _made


class Items:
    """A data set that keeps what it has read."""

    def __init__(self) -> None:
        self.cache: dict[int, Any] = {}
        self.reads = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.cache.setdefault(index, (torch.ones(5) * (index % 3), index % 3))


class Harmless(shoal.Recipe):
    """Keeps caches, notes what it does, and makes things when they are asked for."""

    batch_size = 8
    rows: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self.items = Items()
        self.masks: dict[int, torch.Tensor] = {}

    def data(self) -> shoal.Data:
        return shoal.Data.dataset(self.items, shards=2, validation=0.25)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(5, 3)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    @functools.cached_property
    def weights(self) -> torch.Tensor:
        return torch.ones(3)

    def training_step(self, model: nn.Module, batch: Any, step: int) -> torch.Tensor:
        global calls  # noqa: PLW0603
        calls += 1
        x, y = batch
        if step > 10:
            LINES.append(1.0)
            ROWS["loss"].append(1.0)
            self.rows.append(NAN)
            SEEN.add(str(step))
            MASKS.setdefault(step, torch.ones(()))
            RECENT[step] = 1
            RECENT.move_to_end(min(RECENT))
            if len(RECENT) > 4:
                RECENT.popitem(last=False)
            self.masks.setdefault(step, torch.ones(()))
        out = model(x) * table(len(x) + step % 3)[: len(x)] * scale()
        return nn.functional.cross_entropy(out, y)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def test_caches_and_notes_are_no_matter(tmp_path: Path) -> None:
    space = {"lr": shoal.grid([0.1, 0.01])}
    assert warned(Harmless(), tmp_path, space=space, max_epochs=6) == []
    assert calls > 20
    assert len(LINES) > 20


def test_what_code_only_adds_to() -> None:
    scope: dict[str, Any] = {}
    code = compile(
        "def adds(self):\n"
        "    global n\n"
        "    n += 1\n"
        "    self.rows.append(n2)\n"
        "    kept['a'].append(1)\n"
        "    kept[self.key] += len(n2)\n"
        "    n += len(n2)\n"
        "    K.seen += 1\n"
        "def reads(self):\n"
        "    kept.append(1)\n"
        "    print(len(kept))\n"
        "def inner():\n"
        "    return lambda: rows\n"
        "def counts():\n"
        "    global n\n"
        "    n += 1\n"
        "    return n\n"
        "def shows():\n"
        "    global n\n"
        "    print(n)\n"
        "    n += 1\n"
        "def averages():\n"
        "    kept['a'] = 0.9 * kept['a']\n"
        "def follows():\n"
        "    if K.seen > 3: K.seen += 1\n"
        "def gets(self):\n"
        "    return getattr(self, 'rows')\n"
        "def joins(self, rows):\n"
        "    rows[0] = rows[1]\n",
        "f.py",
        "exec",
    )
    exec(code, scope)
    codes = {n: f.__code__ for n, f in scope.items() if hasattr(f, "__code__")}
    for name in ("n", "rows", "kept", "seen"):
        assert is_only_added_to(name, [codes["adds"], codes["joins"]])
    for name, where in [
        ("kept", "reads"),
        ("kept", "averages"),
        ("rows", "inner"),
        ("rows", "gets"),
        ("n", "counts"),
        ("n", "shows"),
        ("seen", "follows"),
    ]:
        assert not is_only_added_to(name, [codes["adds"], codes[where]])


def test_looks_take_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch, blobs: Any) -> None:
    class Recipe(Late, blobs):  # type: ignore[misc,valid-type]
        change = grown

    clock = itertools.count(0.0, 1.0)  # a look takes a second
    now = [0.0]

    def tick() -> float:
        now[0] = max(now[0], next(clock))
        return now[0]

    monkeypatch.setattr(shared_state, "perf_counter", tick)
    monkeypatch.setattr(shared_state, "RARELY", 100)
    state = RecipeSharing(Recipe())
    grown()
    looked = 0
    while not state.look():
        looked += 1
        assert looked < 300
    assert looked > 40


# -- where nothing is rehearsed --------------------------------------------------------------------


class Estimator:
    """Something that learns."""

    def __init__(self) -> None:
        self.w = np.zeros(5)


class Fitting(shoal.ShardRecipe):
    """Trains what `init` gives."""

    metric, mode, max_epochs, batch_size = "loss", "min", 3, 8
    search_space = {"lr": shoal.grid([0.1, 0.2])}
    one: Any = None

    def data(self) -> shoal.Data:
        x = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
        return shoal.Data.arrays(x, shards=2, validation=0.25)

    def init(self, config: Mapping[str, Any]) -> Any:
        return Estimator() if self.one is None else self.one

    def train_shard(self, state: Any, batches: Iterator[Any], config: Mapping[str, Any]) -> Any:
        samples = 0
        for (x,) in batches:
            state.w += config["lr"] * x.mean(0)
            samples += len(x)
        HISTORY.append(1.0)
        return {"loss": (float(len(HISTORY)), samples)}

    def validate_shard(self, state: Any, batches: Iterator[Any], config: Mapping[str, Any]) -> Any:
        samples = sum(len(x) for (x,) in batches)
        return {"loss": (float(abs(state.w).sum()) * samples, samples)}

    def save(self, state: Any) -> Any:
        return {"w": state.w}

    def load(self, config: Mapping[str, Any], saved: Any) -> Any:
        state = Estimator()
        state.w = np.array(saved["w"])
        return state


def test_a_shard_recipe_is_looked_at(tmp_path: Path) -> None:
    space = {"lr": shoal.grid([0.1, 0.2])}
    assert changes(warned(Fitting(), tmp_path, space=space)) == f"{__name__}.HISTORY"


def test_one_state_for_all_trials_of_a_shard_recipe_is_refused(tmp_path: Path) -> None:
    class Shared(Fitting):
        def __init__(self) -> None:
            self.one = Estimator()

    study = shoal.create_study(Shared(), storage=tmp_path / "s")
    with pytest.raises(shoal.StudyError, match="init returned a Estimator that an ear"):
        study.optimize(progress=False)
    assert not study.folder.journal.exists()


def test_features_are_looked_at(tmp_path: Path, blobs: Any) -> None:
    class Recipe(Late, blobs):  # type: ignore[misc,valid-type]
        change = grown

        def features(self, samples: Any) -> Any:
            return samples

    assert changes(warned(Recipe(), tmp_path)) == f"{__name__}.HISTORY"


def test_one_model_for_all_trials_is_refused_with_features(tmp_path: Path, blobs: Any) -> None:
    class Recipe(blobs):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(5, 3)

        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            return self.one

        def features(self, samples: Any) -> Any:
            return samples

    study = shoal.create_study(Recipe(), storage=tmp_path / "s")
    with pytest.raises(shoal.StudyError, match="which an earlier call returned, too"):
        study.optimize(progress=False)
    assert not study.folder.journal.exists()


def test_lightning_modules_are_looked_at(tmp_path: Path) -> None:
    package = pytest.importorskip("lightning")
    rows = torch.utils.data.TensorDataset(torch.randn(64, 5), torch.arange(64) % 3)

    class Net(package.LightningModule):  # type: ignore[misc,name-defined]
        losses: ClassVar[list[float]] = []
        notes: ClassVar[list[float]] = []

        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.lr = lr
            self.layer = nn.Linear(5, 3)

        def training_step(self, batch: Any, number: int) -> Any:
            loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.notes.append(1.0)
            if self.current_epoch >= 1:
                self.losses.append(1.0)
                loss = loss * (1 + grown() + len(self.losses))
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            right = (self.layer(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("accuracy", right)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    loader = torch.utils.data.DataLoader(rows, 8)
    recipe = shoal.lightning(Net, train=loader, valid=loader)
    recipe.metric, recipe.mode = "accuracy", "max"  # type: ignore[misc]
    told = changes(warned(recipe, tmp_path, space={"lr": shoal.grid([0.1, 0.2])}))
    kind = f"{__name__}.{Net.__qualname__}"
    assert told == ", ".join(sorted([f"{kind}.losses", f"{__name__}.HISTORY"]))


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.slow
def test_slots_of_ray_look_too_and_the_study_says_so(tmp_path: Path, blobs: Any) -> None:
    class Recipe(Late, blobs):  # type: ignore[misc,valid-type]
        change = grown

        def configure_model(self, config: Any) -> Any:
            shared_state.RARELY = 0  # of the slot's process
            return super().configure_model(config)

    told = warned(Recipe(), tmp_path, backend="ray", slots=2, max_epochs=40)
    assert changes(told) == f"{__name__}.HISTORY"
