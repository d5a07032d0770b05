"""Studies whose samples are dealt anew between shards in each epoch."""

import numpy as np
import pytest

import shoal


@pytest.fixture
def dealing(blobs):
    class Dealing(blobs):
        max_epochs = 3
        across = True

        def data(self):
            made = super().data()
            return made.reshuffle("across") if self.across else made

    return Dealing


def weights(study):
    return [study.best_model().state_dict()["0.weight"].numpy()]


def test_a_study_trains_on_deals_and_replays_to_the_bit(dealing, tmp_path):
    study = shoal.create_study(dealing(), storage=tmp_path / "across")
    study.optimize(policy="fifo")
    assert all(row["agrees"] for row in study.replay())
    recipe = dealing()
    recipe.across = False
    plain = shoal.create_study(recipe, storage=tmp_path / "plain")
    plain.optimize(policy="fifo")
    for trial, other in zip(study.trials, plain.trials, strict=True):
        curves = [dict(t.metrics) if hasattr(t, "metrics") else t.value for t in (trial, other)]
    assert study.best_trial.value != plain.best_trial.value or not np.array_equal(
        weights(study)[0], weights(plain)[0]
    )


def test_packed_alone_and_resumed_learn_the_same(dealing, tmp_path):
    one = shoal.create_study(dealing(), storage=tmp_path / "one")
    one.optimize(policy="fifo")
    two = shoal.create_study(dealing(), storage=tmp_path / "two")
    two.optimize(policy="pack", fuse=False, workers=1)
    assert np.array_equal(weights(one)[0], weights(two)[0])
