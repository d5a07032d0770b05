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
    return study.best_model().state_dict()["0.weight"].numpy()


def test_a_study_trains_on_deals_and_replays_to_the_bit(dealing, tmp_path):
    space = {"width": 4, "lr": 1e-2}
    found = []
    for across in (True, False):
        recipe = dealing()
        recipe.across = across
        study = shoal.create_study(recipe, storage=tmp_path / f"{across}", search_space=space)
        study.optimize(policy="fifo", num_samples=1)
        assert all(row["verdict"] in ("equal", "agrees") for row in study.replay())
        found.append(weights(study))
    assert not np.array_equal(*found)


def test_packed_with_workers_learns_what_it_learns_alone(dealing, tmp_path):
    found = []
    for options in ({"policy": "fifo"}, {"policy": "pack", "fuse": False, "workers": 1}):
        study = shoal.create_study(dealing(), storage=tmp_path / options["policy"])
        study.optimize(**options)
        found.append(weights(study))
    assert np.array_equal(*found)
