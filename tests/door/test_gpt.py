"""A GPT trains in Shoal from what a Trainer gets, with a tokenizer made of its own text."""

from pathlib import Path

import door_kit as kit
import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install transformers"
)


@pytest.mark.slow
def test_a_gpt_trains_packed_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_door("gpt", tmp_path)


@pytest.mark.nightly
def test_the_plain_loop_runs() -> None:
    losses = [float(line.split()[-1]) for line in kit.run_plain("gpt").splitlines()]
    assert len(losses) == kit.TRIALS and max(losses) < 6, losses
