"""Private parts of torch: each does what the plain way does; the compiler comes when wanted."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.train import private
from shoal.train.private import KEPT_BYTES, keep_freed

BEGIN = """
import inspect, pickle, sys, torch
from shoal.train.private import WaitingCompiler, delay_compiler
delay_compiler()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
step()
assert torch._dynamo.disable()(max)(1, 2) == 2  # as a decorator, as Keras does
optimizer.load_state_dict(optimizer.state_dict())
pickle.dumps(model)
inspect.getmodule(step)
assert type(sys.modules["torch._dynamo"]) is WaitingCompiler
assert "sympy" not in sys.modules
"""
END = """
assert type(sys.modules["torch._dynamo"]).__name__ == "module"
assert sys.modules["torch._dynamo"] is torch._dynamo
step()
"""
WAYS = {
    "a submodule": """
import torch._dynamo.utils as u
assert u is sys.modules['torch._dynamo.utils'] and u.__spec__.origin
""",
    "from": "from torch._dynamo import config, utils; assert config is torch._dynamo.config",
    "compile": """
compiled = torch.compile(model, backend='eager')
assert compiled(torch.ones(1, 4)).shape == (1, 4)
""",
    "an attribute": "torch._dynamo.reset()",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_comes_when_it_is_wanted(way: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + WAYS[way] + END], check=True, timeout=120)


def test_it_stays_away() -> None:
    subprocess.run([sys.executable, "-c", BEGIN], check=True, timeout=120)


@pytest.mark.slow
def test_a_whole_study_does_without_it(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits.py"
    code = f"""
import runpy, sys, shoal
recipe = runpy.run_path({str(digits)!r})["Digits"]()
recipe.search_space = {{"width": shoal.grid([8, 9]), "lr": 0.01}}
study = shoal.create_study(recipe, storage={str(tmp_path / "s")!r})
study.optimize(max_epochs=1, progress=False)
assert len(study.trials) == 2
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (None, [(-3, 32 * 2**20), (-1, KEPT_BYTES)]),
        ("MALLOC_ARENA_MAX", []),
        ("GLIBC_TUNABLES", []),
    ],
)
def test_freed_memory_is_kept_unless_the_user_has_said_something(
    name: str | None, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            asked.append((option, value))
            return 1

    for option in [
        option
        for option in os.environ
        if option.startswith("MALLOC_") or option == "GLIBC_TUNABLES"
    ]:
        monkeypatch.delenv(option)
    if name is not None:
        monkeypatch.setenv(name, "2")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    keep_freed()
    assert asked == calls
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())  # another C library
    keep_freed()
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed()
    assert asked == calls


def test_a_generators_memory_changes_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (True, False):
        monkeypatch.setattr(private, "ALLOWED", allowed)
        bits = np.random.MT19937(3)
        before = private.generator_memory(bits)
        assert len(before) == 4 * (private.WORDS + 1)
        assert private.generator_memory(np.random.MT19937(3)) == before
        bits.random_raw()
        assert private.generator_memory(bits) != before
        bits = np.random.MT19937(3)
        words = np.frombuffer(before, dtype=np.uint32)
        assert list(words[:-1]) == list(bits.state["state"]["key"])
        assert words[-1] == bits.state["state"]["pos"]


def test_a_step_hook_is_seen() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert not private.has_step_hooks(optimizer)
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert private.has_step_hooks(optimizer)
    handle.remove()
    assert not private.has_step_hooks(optimizer)


@pytest.mark.parametrize(
    "tests",
    [
        "fuse/test_fused_mlps.py::test_each_fused_step_is_that_of_training_alone",
        "lane/test_optimizers.py::test_sparse_and_late_gradients",
        "lane/test_lane_states.py::test_two_trials_taking_turns_at_one_trainer_equal_each_alone",
    ],
)
@pytest.mark.nightly
def test_all_holds_without_private_parts(tests: str) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, str(root / "tests" / "train" / tests)],
        check=True,
        timeout=300,
        cwd=root,
        env={**os.environ, private.SWITCH: "0"},
    )
