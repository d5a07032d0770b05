"""Properties of tensors, and their bytes; a model's buffers and flags, to be put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.train.private import buffers_of

SPARSE_ROWS = {  # layouts that compress rows (or blocks of rows); the others compress columns
    torch.sparse_csr,
    torch.sparse_bsr,
}
SPARSE_COLUMNS = {torch.sparse_csc, torch.sparse_bsc}


class UnshapedError(ValueError):
    """A model has a lazy layer without a shape."""


def is_lazy(tensor: Tensor) -> bool:
    """Whether the tensor waits for the first batch to get its shape."""
    return isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own strides; of a tensor with gaps or overlaps in memory, those of a copy."""
    return torch.empty_like(tensor, device="meta").stride()


def in_line(flat: Tensor, forms: Iterable[tuple[torch.Size, tuple[int, ...]]]) -> list[Tensor]:
    """Views of the flat tensor's elements, one after another, with these shapes and strides."""
    views = []
    start = flat.storage_offset()
    for shape, stride in forms:
        views.append(flat.as_strided(shape, stride, start))
        start += shape.numel()
    return views


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors in order, each once."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def parts_of(tensor: Tensor) -> dict[str, Tensor]:
    """The dense tensors that a sparse tensor consists of, by name.

    The indices of a COO tensor come in order and without repetition (coalesced).
    """
    if tensor.layout == torch.sparse_coo:
        whole = tensor.coalesce()
        return {"indices": whole.indices(), "values": whole.values()}
    if tensor.layout in SPARSE_ROWS:
        starts, places = tensor.crow_indices(), tensor.col_indices()
    else:
        starts, places = tensor.ccol_indices(), tensor.row_indices()
    return {"starts": starts, "places": places, "values": tensor.values()}


def from_parts(layout: str, parts: Mapping[str, Tensor], shape: Sequence[int]) -> Tensor:
    """The sparse tensor of that layout and shape with these `parts_of` it."""
    if layout == "sparse_coo":
        indices, values = parts["indices"], parts["values"]
        return torch.sparse_coo_tensor(indices, values, tuple(shape), is_coalesced=True)
    starts, places = parts["starts"], parts["places"]
    kind = getattr(torch, layout)
    return torch.sparse_compressed_tensor(
        starts, places, parts["values"], tuple(shape), layout=kind
    )


def is_sparse(tensor: Tensor) -> bool:
    """Whether the tensor has one of torch's sparse layouts."""
    return tensor.layout == torch.sparse_coo or tensor.layout in SPARSE_ROWS | SPARSE_COLUMNS


def bytes_of(tensor: Tensor) -> int:
    """Bytes of the tensor's elements; of a sparse tensor, of its indices and values."""
    if is_sparse(tensor):
        return sum(part.nbytes for part in parts_of(tensor).values())
    return tensor.nbytes


def check_model(model: nn.Module) -> None:
    """Refuse what is no model, and models whose state Shoal could not keep.

    Parameters must be dense; buffers may be sparse.

    Raises:
        TypeError: it is no module.
        UnshapedError: a lazy layer has no shape yet.
        ValueError: one has no values, is quantised, or is a sparse parameter; it is named.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"configure_model must return a torch.nn.Module, a new one at each call; got {model!r}"
        )
    check_shaped(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        why = _obstacle(tensor)
        if why:
            raise ValueError(f"{kind} {name!r} of the model {why}")


def check_shaped(model: nn.Module) -> None:
    """Refuse models of which a lazy layer has not seen a batch.

    Raises:
        UnshapedError: there is such a layer.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            layer = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise UnshapedError(
                f"parameter {name!r} of the model has no shape: its {layer} waits for a first "
                "batch; run the model once in configure_model, on torch.zeros(1, …) of the shape "
                "of a sample, or give the layer its sizes"
            )


def _obstacle(tensor: Tensor) -> str:
    """Why the tensor cannot be kept; "" if it can."""
    if tensor.device.type == "meta":
        return "has no values (device meta): configure_model must return a model with values"
    if tensor.is_quantized:
        return "is quantised, which Shoal cannot train or keep: quantise the trained model instead"
    if tensor.layout == torch.strided:
        return ""
    if not is_sparse(tensor):
        return f"has the layout {tensor.layout}; use dense tensors"
    if isinstance(tensor, nn.Parameter):
        return (
            "is sparse, which optimizers cannot step in place: make it dense (its gradients may "
            "be sparse), or a buffer if it is not trained"
        )
    return ""


def coalesce_buffers(model: nn.Module) -> None:
    """Put the indices of sparse COO buffers in order, as they are in a state that was loaded."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.layout == torch.sparse_coo and not buffer.is_coalesced():
                setattr(module, name, buffer.coalesce())


class Buffers(NamedTuple):
    """A model's buffers as they were: the tensors of each module, and the values of each tensor."""

    places: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]
    values: list[tuple[Tensor, Tensor]]

    def put_back(self) -> None:
        """Put the same tensors with the same values back."""
        for box, before in self.places:
            box.clear()
            box.update(before)
        with torch.no_grad():
            for buffer, value in self.values:
                buffer.copy_(value)


def buffers(model: nn.Module) -> Buffers:
    """The model's buffers now: it may write to them, and put others in their place."""
    places = []
    for module in model.modules():
        box = buffers_of(module)
        places.append((box, dict(box)))
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    return Buffers(places, values)


@contextmanager
def flags_kept(model: nn.Module) -> Iterator[None]:
    """Restores every module's training flag afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def text_hash(text: str, size: int) -> str:
    """A hash of the text, of so many bytes, in hexadecimal letters."""
    return blake2b(text.encode(), digest_size=size).hexdigest()
