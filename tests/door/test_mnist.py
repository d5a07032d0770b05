"""PyTorch's mnist on scikit-learn's digits, with the DataLoaders that it has."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_a_convolutional_net_trains_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("mnist", tmp_path)
    assert "epoch 1" in kit.run_plain("mnist")
