"""Optuna looks for a network for handwritten digits: how deep, how wide, how quick."""

import optuna
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS = 5


def make_model(trial):
    layers, inputs = [], 64
    for number in range(trial.suggest_int("layers", 1, 3)):
        width = trial.suggest_int(f"width{number}", 16, 128, log=True)
        layers += [torch.nn.Linear(inputs, width), torch.nn.ReLU()]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, 10))


def objective(trial):
    torch.manual_seed(trial.number)
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16, y, test_size=0.25, random_state=0)
    x, x_valid, y, y_valid = (torch.tensor(part) for part in parts)
    model = make_model(trial).double()
    kind = trial.suggest_categorical("optimizer", ["Adam", "RMSprop"])
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
    for epoch in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        accuracy = (model(x_valid).argmax(1) == y_valid).double().mean().item()
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=4)
    print("best accuracy", study.best_value, study.best_params)
