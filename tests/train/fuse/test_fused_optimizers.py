"""Optimizers stepped together make the steps that torch's own make."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from shoal.train.fuse import stacked
from shoal.train.fuse.formulas import Update
from shoal.train.fuse.memory import Stack
from shoal.train.fuse.optimizers import ByRuns, OneByOne, StepFailed, formula_key
from shoal.train.fuse.stacked import StackedSteps, stepping
from shoal.train.lane.optimizers import family
from shoal.train.lane.tree import to_numpy
from shoal.train.tools.verify import differences

SHAPES = [(4, 3), (4,), (), (5, 2, 2)]
MADE: dict[str, Callable[[Any, float], Optimizer]] = {
    "sgd": lambda p, x: SGD(p, lr=x),
    "sgd decay": lambda p, x: SGD(p, lr=x, weight_decay=x),
    "momentum": lambda p, x: SGD(p, lr=x, momentum=0.5 + x),
    "dampened": lambda p, x: SGD(
        p, lr=x, momentum=0.5 + x, dampening=x, weight_decay=x, maximize=True
    ),
    "nesterov": lambda p, x: SGD(p, lr=x, momentum=0.5 + x, nesterov=True),
    "adam": lambda p, x: Adam(p, lr=x, betas=(0.8 + x, 0.9 + x / 2), eps=1e-6 * x),
    "amsgrad": lambda p, x: Adam(p, lr=x, amsgrad=True, weight_decay=x, maximize=True),
    "adamw": lambda p, x: AdamW(p, lr=x, weight_decay=x, betas=(0.9 - x, 0.99)),
    "adamw ams": lambda p, x: AdamW(p, lr=x, weight_decay=x, amsgrad=True),
    "adagrad": lambda p, x: Adagrad(
        p, lr=x, lr_decay=x, weight_decay=x, initial_accumulator_value=0.1
    ),
    "rmsprop": lambda p, x: RMSprop(p, lr=x, alpha=0.9 + x / 2),
    "rmsprop all": lambda p, x: RMSprop(
        p, lr=x, alpha=0.9, weight_decay=x, momentum=0.5 + x, centered=True
    ),
    "nadam": lambda p, x: NAdam(p, lr=x),
}
RATES = (0.01, 0.05, 0.1)


class Pair:
    """The same k optimizers twice: each by itself, and stepped together."""

    def __init__(
        self,
        made: Callable[[Any, float], Optimizer],
        dtype: torch.dtype = torch.float64,
        groups: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.own = [
            [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES] for _ in RATES
        ]
        self.rows: list[list[Tensor]] = [
            [nn.Parameter(p.detach().clone()) for p in row] for row in self.own
        ]
        self.alone, self.optimizers = (
            [
                made(grouped(row, x) if groups else row, x)
                for row, x in zip(rows, RATES, strict=True)
            ]
            for rows in (self.own, self.rows)
        )
        self.stack: Stack
        self.given: Tensor
        self.batched: Any

    def fuse(self) -> "Pair":
        self.stack = Stack(self.rows, by_lane=True)
        self.given = torch.zeros_like(self.stack.flat)
        self.batched = stepping(self.optimizers, self.stack, self.given)
        self.batched.gather()
        return self

    def step(
        self, used: tuple[bool, ...] = (True,) * 4, lanes: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        """Those lanes alone; all together, if all."""
        grads = [
            [torch.randn_like(p) if u else None for p, u in zip(row, used, strict=True)]
            for row in self.own
        ]
        rows: list[tuple[Any, Any]] = [(self.own, self.alone)]
        if len(lanes) < len(RATES):
            rows.append((self.rows, self.optimizers))
        for parameters, optimizers in rows:
            for i in lanes:
                for p, g in zip(parameters[i], grads[i], strict=True):
                    p.grad = None if g is None else g.clone()
                optimizers[i].step()
        if len(lanes) == len(RATES):
            flat = [
                [
                    torch.zeros_like(p) if g is None else g
                    for p, g in zip(self.own[0], row, strict=True)
                ]
                for row in grads
            ]
            for i, row in enumerate(flat):
                for part, g in zip(self.stack.parts_of(self.given), row, strict=True):
                    part[i].copy_(g)
            with torch.no_grad():
                self.batched.step(list(used))  # as `Fused` does

    def step_by(self, gradient: float) -> None:
        """All lanes together, every element with the same gradient."""
        self.given.fill_(gradient)
        self.batched.step([True] * len(SHAPES))

    def gap(self) -> float:
        """The largest difference in parameters and optimizer states."""
        gaps = [0.0]
        for one, other in zip(self.alone, self.optimizers, strict=True):
            gaps += [
                gap
                for _, gap in differences(to_numpy(one.state_dict()), to_numpy(other.state_dict()))
            ]
        for row, mine in zip(self.own, self.rows, strict=True):
            gaps += [float((a - b).detach().abs().max()) for a, b in zip(row, mine, strict=True)]
        return max(gaps)


def grouped(row: list[Any], x: float) -> Any:
    return [{"params": row[:2], "lr": x / 2, "weight_decay": 0.1 * x}, {"params": row[2:]}]


@pytest.fixture(params=[True, False], ids=["by rows", "by columns"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam by torch's kernel for each row, and by the formula."""
    monkeypatch.setattr(stacked, "ADAM_ROWS", request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", MADE)
def test_steps_are_those_of_torch(name: str) -> None:
    pair = Pair(MADE[name]).fuse()
    for _ in range(5):
        pair.step()
    assert pair.gap() < 1e-12
    assert isinstance(pair.batched, OneByOne if name == "nadam" else StackedSteps)


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw", "adagrad", "rmsprop all"])
def test_float32_agrees_to_rounding(name: str) -> None:
    pair = Pair(MADE[name], torch.float32).fuse()
    for _ in range(5):
        pair.step()
    assert pair.gap() < 2e-6


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["dampened", "adam", "adamw", "adagrad", "rmsprop all"])
def test_groups_ages_and_unused_parameters(name: str) -> None:
    """Groups with numbers of their own; lanes that have made steps before; parameters without a
    gradient at times.
    """
    pair = Pair(MADE[name], groups=True)
    pair.step(lanes=(1,))
    pair.step(lanes=(1, 2))
    pair.fuse()
    for used in (
        (True, True, False, True),
        (True, True, True, True),
        (False, True, True, False),
        (True, True, True, True),
    ):
        pair.step(used)
    assert pair.gap() < 1e-12


MIXTURES = [
    ("adam", "adam", "momentum"),
    ("sgd", "momentum", "dampened"), ("adam", "sgd", "adam"), ("nadam", "adamw", "adamw ams"),
    ("adagrad", "rmsprop", "rmsprop all"), ("sgd", "nadam", "nadam"),
]  # fmt: skip


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("names", MIXTURES, ids=" & ".join)
def test_optimizers_of_several_formulas(names: tuple[str, ...]) -> None:
    """Next to each other or not; with groups, ages and unused parameters; alone in between, and
    after.
    """
    pair = Pair(lambda p, x: MADE[names[RATES.index(x)]](p, x), groups=True)
    pair.step(lanes=(1,))
    pair.fuse()
    for used in ((True, True, False, True), (True, True, True, True)):
        pair.step(used)
    pair.step(lanes=(0, 2))
    pair.batched.gather()
    pair.step()
    pair.batched.part()
    pair.stack.part()
    pair.step(lanes=(1, 2))
    assert isinstance(pair.batched, ByRuns)
    assert pair.gap() < 1e-12


def test_changed_numbers_are_seen() -> None:
    pair = Pair(MADE["adam"]).fuse()
    for step in range(4):
        for optimizers in (pair.alone, pair.optimizers):
            optimizers[step % 3].param_groups[0].update(
                lr=0.2 / (step + 1), betas=(0.5, 0.8), weight_decay=0.01 * step
            )
        pair.step()
    assert pair.gap() < 1e-12


def test_a_rate_that_is_a_tensor_is_read_at_each_step() -> None:
    pair = Pair(lambda p, x: Adam(p, lr=torch.tensor(x, dtype=torch.float64))).fuse()
    for _ in range(3):
        for optimizer in (*pair.alone, *pair.optimizers):
            optimizer.param_groups[0]["lr"].mul_(0.5)
        pair.step()
    assert pair.gap() < 1e-12


def test_a_rate_that_becomes_a_tensor_is_that_tensor_s_number() -> None:
    """In float32 0.02 is another number, which compares as equal to it."""
    pair = Pair(lambda p, x: SGD(p, lr=0.02)).fuse()
    pair.step()
    pair.step()
    for optimizer in (*pair.alone, *pair.optimizers):
        optimizer.param_groups[0]["lr"] = torch.tensor(0.02)
    pair.step()
    assert pair.gap() == 0


@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad", "rmsprop", "nadam"])
def test_lanes_may_step_by_themselves_in_between_and_after(name: str) -> None:
    pair = Pair(MADE[name]).fuse()
    pair.step()
    pair.step(lanes=(0, 2))
    pair.batched.gather()
    pair.step()
    pair.batched.part()
    pair.stack.part()
    held = [
        t
        for o in pair.optimizers
        for s in o.state.values()
        for t in s.values()
        if isinstance(t, Tensor)
    ]
    assert len({t.untyped_storage().data_ptr() for t in held}) == len(held)
    pair.step(lanes=(1, 2))
    assert pair.gap() < 1e-12


def test_an_optimizer_that_raises_is_told_and_the_others_have_stepped() -> None:
    class Picky(SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            if self.param_groups[0]["lr"] == RATES[1]:
                raise ArithmeticError("too steep")
            return super().step(closure)

    pair = Pair(lambda p, x: Picky(p, lr=x)).fuse()
    before = [row[0].detach().clone() for row in pair.rows]
    with pytest.raises(StepFailed) as failed, torch.no_grad():
        pair.step_by(1.0)
    assert list(failed.value.errors) == [1]
    assert [torch.equal(a, row[0]) for a, row in zip(before, pair.rows, strict=True)] == [
        False,
        True,
        False,
    ]


def test_of_several_formulas_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each its own error; those that a kernel of several makes are all of theirs."""

    class Picky(SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            raise ArithmeticError("never")

    made = {
        RATES[0]: lambda p, x: Adam(p, lr=x),
        RATES[1]: lambda p, x: Picky(p, lr=x),
        RATES[2]: lambda p, x: SGD(p, lr=x),
    }
    monkeypatch.setattr(stacked, "ADAM_ROWS", True)
    pair = Pair(lambda p, x: made[x](p, x)).fuse()
    before = [row[0].detach().clone() for row in pair.rows]
    with pytest.raises(StepFailed) as failed, torch.no_grad():
        pair.step_by(1.0)
    assert list(failed.value.errors) == [1]
    assert [torch.equal(a, row[0]) for a, row in zip(before, pair.rows, strict=True)] == [
        False,
        True,
        False,
    ]

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("of Adam's kernel")

    monkeypatch.setattr(torch, "_fused_adam_", broken)
    with pytest.raises(StepFailed) as failed, torch.no_grad():
        pair.step_by(1.0)
    assert {i: type(error) for i, error in failed.value.errors.items()} == {
        0: MemoryError,
        1: ArithmeticError,
    }


def test_what_counts_as_one_formula() -> None:
    def made(kind: Any, **options: Any) -> Optimizer:
        optimizer: Optimizer = kind([nn.Parameter(torch.zeros(2))], **options)
        return optimizer

    assert formula_key(made(Adam, lr=1.0, betas=(0.5, 0.6), weight_decay=1.0)) == formula_key(
        made(Adam, lr=2.0)
    )
    assert formula_key(made(Adam)) != formula_key(made(AdamW))
    assert formula_key(made(Adam)) != formula_key(made(Adam, amsgrad=True))
    assert formula_key(made(SGD, lr=1.0)) != formula_key(made(SGD, lr=1.0, momentum=0.9))
    assert formula_key(made(SGD, lr=1.0, momentum=0.5)) == formula_key(
        made(SGD, lr=1.0, momentum=0.9)
    )
    assert family(made(Adam, differentiable=True)) is None
    hooked = made(Adam)
    hooked.register_step_post_hook(lambda *_: None)
    assert family(hooked) is None
    scheduled = made(Adam)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    assert family(scheduled) is not None


def test_a_rate_that_lies_on_a_device_is_never_read() -> None:
    optimizer = Adam([nn.Parameter(torch.ones(2))], lr=0.1)
    assert family(optimizer) is Adam
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    assert family(optimizer) is Adam
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    assert family(optimizer) is None


@pytest.mark.parametrize("name", sorted(MADE.keys() - {"nadam"}))
def test_the_numbers_of_a_step_are_sent_in_one_copy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    columns = Update.columns

    def counted(now: Update, *numbers: Any) -> Any:
        sent.append(len(numbers))
        return columns(now, *numbers)

    monkeypatch.setattr(stacked, "ADAM_ROWS", False)  # as on a GPU
    monkeypatch.setattr(Update, "columns", counted)
    pair = Pair(MADE[name]).fuse()
    with torch.no_grad():
        pair.step_by(1.0)
        pair.step_by(1.0)
    assert len(sent) == 2
