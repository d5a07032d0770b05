"""An objective as Optuna has them, which goes on from its checkpoint after an interruption.

python examples/door/optuna_objective.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import shoal

EPOCHS = 5


def make_model(trial):
    layers, inputs = [], 64
    for number in range(trial.suggest_int("layers", 1, 3)):
        width = trial.suggest_int(f"width{number}", 16, 128, log=True)
        layers += [torch.nn.Linear(inputs, width), torch.nn.ReLU()]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, 10))


def objective(trial):
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16, y, test_size=0.25, random_state=0)
    x, x_valid, y, y_valid = (torch.tensor(part) for part in parts)
    model = make_model(trial).double()
    kind = trial.suggest_categorical("optimizer", ["Adam", "RMSprop"])
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
    begun, accuracy = 0, 0.0
    if (state := shoal.restore()) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun, accuracy = state["epoch"], state["accuracy"]
    for epoch in range(begun, EPOCHS):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        accuracy = (model(x_valid).argmax(1) == y_valid).double().mean().item()
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        kept |= {"epoch": epoch + 1, "accuracy": accuracy}
        shoal.report(accuracy, checkpoint=kept)
    return accuracy


if __name__ == "__main__":
    study = shoal.create_study(storage="runs/objective", direction="maximize", load_if_exists=True)
    study.optimize(objective, n_trials=4, progress=False)
    print("best accuracy", study.best_value, study.best_params)
