"""What Shoal uses of transformers; the one place that imports it."""

from shoal.core.install import install

try:
    from transformers import TrainingArguments, default_data_collator, get_scheduler
    from transformers.trainer_pt_utils import (
        get_parameter_names,
        nested_concat,
        nested_detach,
        nested_numpify,
    )
    from transformers.trainer_utils import EvalPrediction
    from transformers.utils.generic import find_labels
except ImportError as error:
    raise ImportError(f"shoal.huggingface needs transformers: {install('transformers')}") from error

__all__ = [
    "EvalPrediction",
    "TrainingArguments",
    "default_data_collator",
    "find_labels",
    "get_parameter_names",
    "get_scheduler",
    "nested_concat",
    "nested_detach",
    "nested_numpify",
]
