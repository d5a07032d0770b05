"""PyTorch's gcn, a sparse adjacency, on the graph of scikit-learn's digits."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_a_graph_with_a_sparse_adjacency_trains_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("gcn", tmp_path)
    assert "accuracy" in kit.run_plain("gcn")
