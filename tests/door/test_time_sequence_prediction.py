"""PyTorch's time_sequence_prediction, LBFGS with its closure, on sine waves."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_lbfgs_trains_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("time_sequence_prediction", tmp_path)
    assert "loss" in kit.run_plain("time_sequence_prediction")
