"""PyTorch's vae on scikit-learn's digits."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_a_variational_autoencoder_trains_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("vae", tmp_path)
    assert "loss" in kit.run_plain("vae")
