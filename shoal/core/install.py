"""How to install the packages that Shoal needs for some of what it does."""

# What Shoal does not do without: the dependencies of pyproject.toml.
NEEDED = (
    "cloudpickle",
    "filelock",
    "fsspec",
    "jinja2",
    "msgspec",
    "numpy",
    "rich",
    "scipy",
    "torch",
    "typer",
)
# The extra of Shoal's own that brings a package, where there is one (pyproject.toml).
EXTRAS = {
    "accelerate": "huggingface",
    "datasets": "huggingface",
    "ipykernel": "notebook",
    "lightning": "lightning",
    "mlflow-skinny": "mlflow",
    "optuna": "optuna",
    "pyarrow": "parquet",
    "ray": "ray",
    "scikit-learn": "examples",
    "starlette": "ui",
    "tensorboard": "tensorboard",
    "transformers": "huggingface",
    "uvicorn": "ui",
    "wandb": "wandb",
}


def install(*packages: str) -> str:
    """Returns the command that installs these packages, for whoever has Shoal from a wheel too.

    >>> install("pyarrow", "pillow")
    "pip install 'shoal[parquet]' pillow"
    """
    extras = sorted({EXTRAS[name] for name in packages if name in EXTRAS})
    words = [f"'shoal[{','.join(extras)}]'"] if extras else []
    return " ".join(["pip install", *words, *(name for name in packages if name not in EXTRAS)])
