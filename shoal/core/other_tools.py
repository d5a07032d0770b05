"""What other tools call things, and what to write here: for errors about names that Shoal lacks.

Names are those of Optuna, Ray Tune, Lightning, the Hugging Face Trainer and W&B sweeps. Each stands
once, under the place of Shoal's own name; the other places look it up there. In two places stands
what both have names for.
"""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from shoal.core.errors import ArgumentError

# Of `Study.optimize`.
OPTIMIZE = {
    # trials, and for how long they train
    "n_jobs": "backend='ray' with slots=N, for N at once; on one slot recipes are packed",
    "count": "num_samples=",
    "run_cap": "num_samples=",
    "epochs": "max_epochs=",
    "num_epochs": "max_epochs=",
    "num_train_epochs": "max_epochs=",
    "max_t": "max_epochs=",
    "max_steps": "max_epochs=, which counts epochs and not steps",
    "max_concurrent_trials": "max_concurrent=",
    "time_budget_s": "timeout=",
    "max_time": "timeout=, in seconds",
    # who decides
    "scheduler": "searcher='asha'",
    "search_alg": "searcher=",
    "sampler": "searcher='optuna'",
    "pruner": "searcher='median'",
    "method": "searcher=",
    "early_terminate": "searcher='asha'",
    "early_stopping": "searcher='patience(epochs=…)'",
    "early_stopping_patience": "searcher='patience(epochs=…)'",
    "patience": "searcher='patience(epochs=…)'",
    # where they train
    "num_workers": "workers=",
    "accelerator": "device=",
    "devices": "slots=, with backend='ray'",
    "gpus": "slots=, with backend='ray'",
    "num_gpus": "slots=, with backend='ray'",
    "n_gpus": "slots=, with backend='ray'",
    "gpus_per_trial": "widths=, the slots of each trial",
    "resources_per_trial": "widths=, slots= and threads=",
    "strategy": "widths=(1, 4) with backend='ray', for up to four slots to a trial",
    # what is evaluated, kept and shown
    "val_check_interval": "validate_every=",
    "check_val_every_n_epoch": "validate_every=",
    "eval_steps": "validate_every='200 steps'",
    "eval_strategy": "validate_every=",
    "evaluation_strategy": "validate_every=",
    "save_steps": "checkpoint_every=, in seconds",
    "save_strategy": "checkpoint_every=, in seconds",
    "save_total_limit": "max_checkpoint_gb=",
    "enable_checkpointing": "checkpoint_every=, in seconds",
    "logger": "loggers=['csv'], or 'tensorboard', 'mlflow', 'wandb'",
    "report_to": "loggers=['wandb'], or 'tensorboard', 'mlflow', 'csv'",
    "enable_progress_bar": "progress=",
    "show_progress_bar": "progress=",
    "disable_tqdm": "progress=False",
    "verbose": "progress=",
}
# Of `create_study`.
CREATE = {
    "sampler": "searcher='optuna' (Optuna's TPE), or 'random'",
    "pruner": "searcher='median', or 'asha' with max_epochs= in optimize()",
    "direction": "direction=",
    "directions": "metric= and direction=, of one value",
    "objective": "the function as the first argument",
    "model": "a shoal.Recipe as the first argument",
    "trainer": "shoal.lightning(YourModule) or shoal.huggingface(model_init, …) as the first "
    "argument, without a Trainer",
    "monitor": "metric=",
    "metric_for_best_model": "metric=",
    "greater_is_better": "mode='max'",
    "config": "search_space=",
    "hp_space": "search_space=",
    "param_space": "search_space=",
    "parameters": "search_space=",
    "space": "search_space=",
    "ckpt_path": "load_if_exists=True, with which the study goes on",
    "resume": "load_if_exists=True, with which the study goes on",
    "resume_from_checkpoint": "load_if_exists=True, with which the study goes on",
    "default_root_dir": "storage=",
    "local_dir": "storage=",
    "output_dir": "storage=",
    "storage_path": "storage=",
    "dir": "storage=",
    "name": "study_name=",
    "experiment_name": "study_name=",
    "run_name": "study_name=",
    "project": "study_name=",
}
# Attributes of a recipe.
RECIPE = {
    "monitor": "metric",
    "metric_for_best_model": "metric",
    "num_train_epochs": "max_epochs",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "max_grad_norm": "gradient_clip_val",
    "bf16": "precision",
    "fp16": "precision",
    "train_dataloader": "train",
    "train_dataloaders": "train",
    "train_dataset": "train",
    "val_dataloader": "valid",
    "val_dataloaders": "valid",
    "eval_dataset": "valid",
}
# What needs no argument here, and why.
NEEDLESS = {
    "catch": "a trial that raises fails, and the others go on",
    "gc_after_trial": "Python collects garbage by itself",
    "func": "give the function first, by place",
    "trainer": "Shoal trains without a Trainer; what it was given goes to study.optimize, or is an "
    "attribute of the recipe",
    "compute_objective": "trials are ranked by the metric that create_study(metric=) names",
    "log_every_n_steps": "scores are logged at each evaluation: validate_every=",
    "logging_steps": "scores are logged at each evaluation: validate_every=",
}


def for_optimize(name: str, recipe: Collection[str]) -> str | None:
    """What to write in place of an argument that `optimize` lacks. `recipe`: a recipe's names."""
    if name in OPTIMIZE:
        return OPTIMIZE[name]
    if name in CREATE and name not in NEEDLESS:
        return _call("create_study", CREATE[name])
    attribute = RECIPE.get(name) or (name if name in recipe else None)
    return attribute and f"{attribute} of the recipe"


def for_create(name: str, options: Collection[str], recipe: Collection[str]) -> str | None:
    """What to write in place of an argument that `create_study` lacks.

    `options`: the arguments of `optimize`. `recipe`: the names of a recipe's attributes.
    """
    if name in CREATE:
        return CREATE[name]
    if name in options:
        return f"optimize({name}=)"
    if name in OPTIMIZE:
        return _call("optimize", OPTIMIZE[name])
    attribute = RECIPE.get(name) or (name if name in recipe else None)
    return attribute and f"{attribute} of the recipe"


def for_recipe(name: str) -> str | None:
    """What to write in place of an attribute that recipes lack."""
    if name in RECIPE:
        return f"{RECIPE[name]}="
    if name in OPTIMIZE:
        return _call("study.optimize", OPTIMIZE[name])
    if name in CREATE and name not in NEEDLESS:
        return _call("create_study", CREATE[name])
    return None


def hint(name: str, meant: str | None, near: Iterable[str] = ()) -> str:
    """What an error adds to a wrong name: what was meant, that it is needless, or the like of it.

    `near`: names of which one may have been misspelt.
    """
    if meant is None and name in NEEDLESS:
        return f" (leave it out: {NEEDLESS[name]})"
    meant = meant or " or ".join(get_close_matches(name, [*near], 2))
    return f" (did you mean {meant}?)" if meant else ""


def _call(function: str, text: str) -> str:
    """The text as what the function is to be given."""
    begin = re.match(r"\w+=(?:\w+|'[^']*'|\([^)]*\))?", text)
    if begin is not None:
        return f"{function}({begin[0]}){text[begin.end() :]}"
    return f"of {function}, {text}"


# -- objects of other tools ------------------------------------------------------------------------

# The packages whose callbacks and loggers people give, and the tools' names.
TOOLS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "transformers": "the Hugging Face Trainer",
    "ray": "Ray",
    "keras": "Keras",
    "optuna": "Optuna",
    "optuna_integration": "Optuna",
}
CALLBACKS = {
    "EarlyStopping": 'use searcher="patience(epochs=…)", which stops trials that do not improve',
    "ModelCheckpoint": 'states are kept by themselves (checkpoint_every=), and best_model(which="'
    'best") gives the best',
    "LearningRateMonitor": "have training_step return the rate, and it is shown as a curve",
    "Timer": "use timeout=",
    "ProgressBar": "progress is shown by itself (progress=)",
    "MaxTrialsCallback": "use n_trials=",
}
OTHER_CALLBACK = (
    "write the hooks of your module, or a shoal.Callback, which is told of trials and epochs"
)
ALIKE = {"EarlyStoppingCallback": "EarlyStopping", "Checkpoint": "ModelCheckpoint"}
LOGGERS = {
    "CSVLogger": "csv",
    "TensorBoardLogger": "tensorboard",
    "TensorBoardCallback": "tensorboard",
    "MLFlowLogger": "mlflow",
    "MLflowCallback": "mlflow",
    "MLflowLoggerCallback": "mlflow",
    "WandbLogger": "wandb",
    "WandbCallback": "wandb",
    "WeightsAndBiasesCallback": "wandb",
    "WandbLoggerCallback": "wandb",
}


def check_own(values: object) -> None:
    """Raise ArgumentError if this, or one of these, is a callback or a logger of another tool."""
    for each in values if isinstance(values, list | tuple) else [values]:
        instead = _instead_of(each)
        if instead is not None:
            raise ArgumentError(instead)


def _instead_of(given: object) -> str | None:
    """What to write in place of a callback or a logger of another tool; None: it is none."""
    kind = given if isinstance(given, type) else type(given)
    names = [ALIKE.get(base.__name__, base.__name__) for base in kind.__mro__]
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    tools = [TOOLS[package] for package in packages if package in TOOLS]
    is_one = any("Callback" in name or "Logger" in name for name in names)
    if not tools or not is_one or "shoal" in packages:
        return None
    what, meant = "callback", OTHER_CALLBACK
    if any("Logger" in name for name in names):
        what, meant = "logger", 'loggers are names, such as loggers=["csv", "tensorboard"]'
    known = CALLBACKS | {name: f'use loggers=["{own}"]' for name, own in LOGGERS.items()}
    meant = next((known[name] for name in names if name in known), meant)
    return f"{kind.__name__} is a {what} of {tools[0]}, which Shoal does not call: {meant}"
