"""Models whose tensors are not dense: what Shoal keeps, and what it refuses for its trial alone."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from train_kit import Linear, blobs, copied, go, planned, trainer, trial
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.tensors import bytes_of
from shoal.train.tools.verify import differences

LAYOUTS = {
    "coo": lambda dense: dense.to_sparse(),
    "not coalesced": lambda dense: torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1, 5], [1, 1, 0, 5]]), torch.tensor([0.5, 0.25, 1.0, 2.0]), (6, 6)
    ),
    "bfloat16": lambda dense: dense.bfloat16().to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((2, 3)),
}


class Mixing(nn.Module):
    """Its inputs are mixed by a sparse matrix, which moves with each step in training."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("matrix", matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.matrix.to_dense().float() @ x.T
        if self.training:
            self.matrix.values().mul_(1.01)
        out: torch.Tensor = self.inner(mixed.T)
        return out


class Sparse(Linear):
    def configure_model(self, config: Any) -> nn.Module:
        dense = torch.eye(6) + torch.diag(torch.ones(5), 1)
        return Mixing(LAYOUTS[config["layout"]](dense))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_buffers_are_trained_kept_and_moved(layout: str, tmp_path: Path) -> None:
    data, what = blobs(), trial(layout=layout)
    whole = trainer(Sparse(), data)
    go(whole, what, planned(data, 2))
    expected = copied(whole.state(what.id))
    first = trainer(Sparse(), data)
    visits = go(first, what, planned(data, 2)[:2])
    vault = Checkpoints(tmp_path, 1)
    vault.save("a/000001-1.pt", first.state(what.id))
    for source in (copied(first.state(what.id)), vault.load("a/000001-1.pt")):
        second = trainer(Sparse(), data)
        go(second, what, planned(data, 2)[2:], visits, source=source)
        assert not list(differences(expected, second.state(what.id)))


def test_bytes_of_a_sparse_tensor_are_those_of_its_parts() -> None:
    coo = torch.eye(4).to_sparse()
    assert bytes_of(coo) == 4 * 2 * 8 + 4 * 4
    assert bytes_of(torch.eye(4).to_sparse_csr()) == 5 * 8 + 4 * 8 + 4 * 4
    assert bytes_of(torch.eye(4)) == 64


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


class Odd(Linear):
    search_space = {"kind": shoal.grid(["plain", "sparse", "parameter", "quantised", "meta"])}
    metric, mode = "accuracy", "max"

    def data(self) -> shoal.Data:
        return blobs(shards=1)

    def configure_model(self, config: Any) -> nn.Module:
        model = nn.Linear(6, 3)
        kind = config["kind"]
        if kind == "sparse":
            model.register_buffer("more", torch.eye(3).to_sparse())
        if kind == "parameter":
            model.weight = nn.Parameter(torch.ones(3, 6).to_sparse())
        if kind == "quantised":
            model.register_buffer("more", quantised())
        if kind == "meta":
            model.register_buffer("more", torch.ones(3, device="meta"))
        return model


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_kept_fails_for_itself_and_the_others_go_on(tmp_path: Path) -> None:
    study = shoal.create_study(Odd(), storage=tmp_path)
    study.optimize(max_epochs=2, progress=False)
    status = {each.config["kind"]: each.status for each in study.trials}
    assert status.pop("plain") == status.pop("sparse") == "finished"
    assert "parameter 'weight' of the model is sparse" in status["parameter"]
    assert "buffer 'more' of the model is quantised" in status["quantised"]
    assert "buffer 'more' of the model has no values (device meta)" in status["meta"]
    assert all(each.startswith("failed") for each in status.values())
    assert [row["equal"] for row in study.replay()] == [True, True]


@pytest.mark.filterwarnings("ignore")
def test_a_replay_of_nothing_is_an_error(tmp_path: Path) -> None:
    class Bad(Odd):
        search_space = {"kind": shoal.grid(["quantised", "meta"])}

    study = shoal.create_study(Bad(), storage=tmp_path)
    with suppress(shoal.StudyError):  # all of its trials failed
        study.optimize(max_epochs=1, progress=False)
    assert all(each.status.startswith("failed") for each in study.trials)
    with pytest.raises(shoal.StudyError, match="nothing durable of any trial"):
        study.replay()
    assert CliRunner().invoke(app, ["replay", str(study.folder.path)]).exit_code == 2
