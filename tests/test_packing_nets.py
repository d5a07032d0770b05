"""The nets of Pack's evaluation, and how the memory of their steps is counted."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MIB = 2**20


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "common", raising=False)


@pytest.mark.parametrize(
    ("net", "parameters"),
    [
        ("MLP-3", 9_707_176),
        ("MobileNetV2", 3_504_872),
        ("ResNet-50", 25_557_032),
        ("DenseNet-121", 7_978_856),
    ],
)
def test_the_papers_nets_have_their_authors_numbers_of_parameters(
    net: str, parameters: int
) -> None:
    from packing_written import IMAGE, WRITTEN

    with torch.device("meta"):
        model = WRITTEN[net]()
        out = model(torch.empty(2, *IMAGE))
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert out.shape == (2, 1000)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bytes_that_tensors_hold_are_counted_while_they_live(device: str) -> None:
    from packing_memory import Held

    with Held() as held, torch.device(device):
        first = torch.empty(3, MIB, dtype=torch.uint8)
        view = first[1:]
        second = first.clone()
        assert held.bytes == 6 * MIB
        del first
        assert held.bytes == 6 * MIB  # the view keeps it
        del view
        assert held.bytes == 3 * MIB
        second.add_(1)
        assert (held.bytes, held.most) == (3 * MIB, 6 * MIB)


def test_a_step_holds_what_is_kept_for_its_gradients() -> None:
    from packing_memory import Held

    with Held() as held, torch.device("meta"):
        model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Sigmoid())
        out = model(torch.empty(512, 256))
        state, images, outputs = 4 * 256 * 1024, 4 * 512 * 256, 4 * 512 * 1024
        # Sigmoid keeps what it put out; the layer's own output is freed.
        assert held.bytes == state + images + outputs
        assert held.most == state + images + 2 * outputs
        out.sum().backward()
        del out
        assert held.bytes == 2 * state  # the gradients stay; what they needed is freed
