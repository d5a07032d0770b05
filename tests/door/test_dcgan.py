"""PyTorch's dcgan, two optimizers, on scikit-learn's digits."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_two_networks_with_an_optimizer_each_train_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("dcgan", tmp_path)
    assert "d_loss" in kit.run_plain("dcgan")
