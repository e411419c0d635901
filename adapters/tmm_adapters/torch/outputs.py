"""What a language model returns: tensors by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree  # the public module, torch.utils.pytree, is not in every release yet

__all__ = ["Output"]


class Output(dict[str, Tensor]):
    """Tensors that are read by name or as attributes, `output["loss"]` or `output.loss`.

    >>> import torch
    >>> Output(logits=torch.ones(1)).logits
    tensor([1.])
    """

    def __getattr__(self, name: str) -> Tensor:
        """Return a tensor by its name."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"there is no {name!r} among {', '.join(self)}" + ("; give targets or labels" if name == "loss" else "")
            ) from None


def _flatten(output: Output) -> tuple[list[Any], list[str]]:
    return list(output.values()), list(output)


def _unflatten(values: Any, names: Any) -> Output:
    return Output(zip(names, values, strict=True))


# So that fully sharded modules and compilers find the tensors.
pytree.register_pytree_node(Output, _flatten, _unflatten, serialized_type_name="tmm_adapters.torch.Output")
