"""Torch's compiler stays away until it is wanted, and is whole when it comes."""

import subprocess
import sys

import pytest

BEGIN = """
import inspect, pickle, sys, torch
from shoal.train import lean
lean.wait()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
step()
optimizer.load_state_dict(optimizer.state_dict())
pickle.dumps(model)
inspect.getmodule(step)
assert type(sys.modules["torch._dynamo"]) is lean.Waiting
assert "sympy" not in sys.modules
"""
END = """
assert type(sys.modules["torch._dynamo"]).__name__ == "module"
assert sys.modules["torch._dynamo"] is torch._dynamo
step()
"""
WAYS = {
    "a submodule": "import torch._dynamo.utils as u; assert u is sys.modules['torch._dynamo.utils'] and u.__spec__.origin",
    "from": "from torch._dynamo import config, utils; assert config is torch._dynamo.config",
    "compile": "compiled = torch.compile(model, backend='eager'); assert compiled(torch.ones(1, 4)).shape == (1, 4)",
    "an attribute": "torch._dynamo.reset()",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_comes_when_it_is_wanted(way: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + WAYS[way] + END], check=True, timeout=120)


def test_it_stays_away() -> None:
    subprocess.run([sys.executable, "-c", BEGIN], check=True, timeout=120)
