"""A LightningModule with its data module trains in Shoal, unchanged."""

from pathlib import Path

import door_kit as kit
import pytest

pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
pytest.importorskip("sklearn")


@pytest.mark.slow
def test_a_module_trains_packed_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_door("lightning_module", tmp_path)


@pytest.mark.nightly
def test_the_plain_loop_runs() -> None:
    assert "val_acc 0." in kit.run_plain("lightning_module")
