"""A loop of one's own: Shoal gives configurations, and is told what came of them.

The training code may be anywhere: here scikit-learn, elsewhere a simulator or a cluster's queue.

python examples/own_loop.py
"""

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import shoal

TRIALS, PASSES = 8, 5


def main() -> None:
    """Search for the best of two kinds of linear classifiers."""
    x, y = load_digits(return_X_y=True)
    x, x_valid, y, y_valid = train_test_split(x / 16, y, random_state=0)
    study = shoal.create_study(
        storage="runs/loop",
        metric="accuracy",
        mode="max",
        search_space={
            "alpha": shoal.loguniform(1e-6, 1e-1),
            "loss": shoal.choice(["hinge", "log_loss"]),
        },
        searcher="median",
        load_if_exists=True,
    )
    for _ in range(len(study.trials), TRIALS):
        trial = study.ask()
        model = SGDClassifier(**trial.config, random_state=0)
        accuracy = 0.0
        for step in range(PASSES):
            model.partial_fit(x, y, classes=range(10))
            accuracy = model.score(x_valid, y_valid)
            trial.report(accuracy, step)
            if trial.should_prune():
                break
        study.tell(trial, accuracy)
    print(study.best_params, f"{study.best_value:.3f}")


if __name__ == "__main__":
    main()
