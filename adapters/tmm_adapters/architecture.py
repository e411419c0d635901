"""What a language model must tell about itself to be trained, measured, written and sampled: one class a model.

To add one:

1. Write its configuration: a frozen dataclass derived from `tmm_core.fields.Configuration`, with the members of
   `ModelConfig`. Its fields become options of `tmm train`.
2. Write the model, for PyTorch as a module that is called as `Architecture.torch_model` says. Every evaluation writes a
   sample, so it must continue texts: derive it from `tmm_adapters.torch.generation.TextGeneration`.
3. Derive a class from `Architecture` with `title`, `config_class`, `n_parameters`, `flops_per_token`, `learning_rate`
   and `torch_model`; everything else has a default.
4. Name the class in the metadata of your distribution, under the `model_type` of its configuration:

       [project.entry-points."tmm_adapters.architectures"]
       bigram = "my_package:Bigram"

From then on `tmm train --arch bigram` trains it, `tmm eval` and `tmm generate` take its folders, and `load_model`
returns it. tests/training/bigram in the repository is complete; `tmm_adapters.tmm.TMM` is the first.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from tmm_core.errors import InputError, NotFoundError, UnsupportedError, did_you_mean

from .extras import how_to_install

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

__all__ = [
    "Architecture",
    "Framework",
    "Heatmap",
    "JaxFunctions",
    "ModelConfig",
    "architectures",
    "config_from_dict",
    "config_to_dict",
    "get_architecture",
]

GROUP = "tmm_adapters.architectures"

Framework = Literal["torch", "jax"]


class ModelConfig(Protocol):
    """What every configuration of a model has; it is a frozen dataclass and a `tmm_core.fields.Configuration`, too.

    Its fields are options of `tmm train`, with the string literals below them as help.
    """

    model_type: ClassVar[str]
    """The name under which its architecture is registered, and which `config.json` holds."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_len(self) -> int:
        """Tokens of the training context."""

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain data, fit for JSON."""


C = TypeVar("C", bound=ModelConfig)


@dataclasses.dataclass(frozen=True)
class Heatmap:
    """Rows of numbers to be drawn next to the learning curve, each divided by its largest magnitude."""

    title: str
    xlabel: str
    rows: NDArray[Any]
    """(rows, columns); columns are drawn on a logarithmic axis."""
    names: Sequence[str]
    """Of the rows."""
    rows_per_layer: int


class Architecture(ABC, Generic[C]):
    """A kind of language model; methods take the configuration of one model of the kind."""

    title: ClassVar[str]
    """The name in words."""
    config_class: ClassVar[type[Any]]
    """A `ModelConfig`; its `presets` are those of the architecture."""
    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    """What it can be computed by."""
    has_toeplitz_products: ClassVar[bool] = False
    """Whether it calls `tmm_core`, so that its speed depends on the backend."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        name: str = self.config_class.model_type
        return name

    # What a model is, without computing anything

    @abstractmethod
    def n_parameters(self, config: C) -> int:
        """Return the number of parameters."""

    @abstractmethod
    def flops_per_token(self, config: C) -> int:
        """Return the floating-point operations that training takes a token."""

    @abstractmethod
    def learning_rate(self, config: C) -> float:
        """Return the peak learning rate of AdamW where the user gives none."""

    def summary(self, config: C) -> str:
        """Return the size of a model in a few words."""
        given = {name.replace("_", " "): value for name, value in config.to_dict().items() if value is not None}
        return ", ".join(f"{name} {value}" for name, value in given.items())

    def longest_text(self, config: C) -> float:
        """Return how many tokens a text can have, infinity where there is no limit."""
        return math.inf

    def decayed_names(self, config: C, shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """Return which of the parameters, given with their shapes, weight decay draws to zero: matrices by default."""
        return frozenset(name for name, shape in shapes.items() if len(shape) == 2 and "embed" not in name)

    def file_fields(self, config: C) -> dict[str, Any]:
        """Return what the `config.json` of a model folder holds, as plain data.

        Another library's fields may stand there, so that it can load the folder as well; `config_to_dict` of the
        configuration is then the field `tmm`.
        """
        return config_to_dict(config)

    def check_params(self, params: Mapping[str, Any], config: C) -> None:
        """Refuse parameters that are not those of `config`; by default the framework's own check has to do."""

    # How it is computed

    def torch_model(self, config: C, *, seed: int) -> nn.Module:
        """Return the PyTorch model with its initial parameters, which are a function of `seed`.

        Notes
        -----
        Called as `model(input_ids, targets=..., segment_ids=...)`, with (b, n) integers, it returns a mapping:
        `logits`, (b, n, vocab_size), and where targets are given `loss`, the mean cross-entropy (nats) of those that
        are not -100. Tokens with other `segment_ids` belong to other documents, which it does not see. Parameters that
        are not trained do not require a gradient. `model.new_tokens` continues texts, as in
        `tmm_adapters.torch.generation.TextGeneration`.
        """
        raise UnsupportedError(f"{self.name} has no PyTorch model: choose another framework")

    def torch_from_params(self, params: Mapping[str, Any], config: C) -> nn.Module:
        """Return the PyTorch model with these parameters, Torch tensors by name.

        Raises
        ------
        ValueError
            If names or shapes are not those of `config`.
        """
        model = self.torch_model(config, seed=0)
        try:
            model.load_state_dict(dict(params))
        except RuntimeError as error:
            raise InputError(str(error)) from error
        return model

    def jax_functions(self) -> JaxFunctions:
        """Return the functions that compute the model in JAX."""
        raise UnsupportedError(f"{self.name} is not computed in JAX: take --framework torch")

    # What is kept and drawn of a run

    def is_logged(self, name: str) -> bool:
        """Return whether the parameter `name` is kept at every evaluation of a run; by default none is."""
        return False

    def heatmap(self, config: C, logged: Mapping[str, NDArray[Any]]) -> Heatmap | None:
        """Return what to draw of the logged parameters of a trained model, by default nothing."""
        return None


class JaxFunctions(Protocol):
    """What computes a model in JAX, where parameters are a mapping of names to arrays; see `tmm_adapters.jax`."""

    @staticmethod
    def init(config: Any, seed: int) -> dict[str, Any]:
        """Return the initial parameters."""

    @staticmethod
    def from_params(params: Mapping[str, Any], config: Any) -> dict[str, Any]:
        """Return copies of parameters of any library."""

    @staticmethod
    def loss(params: Mapping[str, Any], input_ids: Any, config: Any, **options: Any) -> Any:
        """Return the mean cross-entropy (nats), given `targets`, `segment_ids`, `precision`, `mesh` and `backend`."""

    @staticmethod
    def optimizer(config: Any, **options: Any) -> Any:
        """Return AdamW, given `learning_rate`, `weight_decay`, `beta1`, `beta2` and `clip`."""

    @staticmethod
    def train_step(params: Any, opt_state: Any, batch: Any, config: Any, optimizer: Any, **options: Any) -> Any:
        """Return parameters, the optimiser's state and the loss after a step, given `rate`, `precision` and `mesh`."""

    @staticmethod
    def shardings(config: Any, mesh: Any) -> Any:
        """Return how parameters, by name, and batches lie on a mesh."""

    @staticmethod
    def new_tokens(params: Mapping[str, Any], input_ids: Any, config: Any, max_new_tokens: int, **options: Any) -> Any:
        """Yield the tokens that continue prompts, (b, at_a_time)."""


def architectures() -> tuple[str, ...]:
    """Return the names of the registered architectures, importing none.

    >>> "tmm" in architectures()
    True
    """
    return tuple(sorted(_registered()))


@functools.cache
def get_architecture(name: str) -> Architecture[Any]:
    """Return the architecture called `name`.

    Raises
    ------
    LookupError
        If none is registered under that name, or it cannot be loaded.
    """
    entry = _registered().get(name)
    if entry is None:
        known = architectures()
        raise NotFoundError(
            f"unknown architecture {name!r}: choose one of {', '.join(known)}{did_you_mean(name, known)}"
        )
    try:
        found = entry.load()
    except ImportError as error:
        raise NotFoundError(
            f"architecture {name!r} cannot be loaded from {entry.value}: {error}"
            + (f"; {how_to_install(error.name)}" if isinstance(error, ModuleNotFoundError) and error.name else "")
        ) from error
    if not (isinstance(found, type) and issubclass(found, Architecture) and found().name == name):
        raise NotFoundError(f"architecture {name!r} cannot be used: {entry.value} is no Architecture of that name")
    return found()


def config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration as plain data, the name of its architecture first, as `config.json` holds it."""
    return {"model_type": config.model_type, **config.to_dict()}


def config_from_dict(fields: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration that `config_to_dict` wrote.

    Raises
    ------
    LookupError
        If its architecture is not registered.
    TypeError, ValueError
        If it names none, or a field is unknown, or cannot be.
    """
    name, others = fields.get("model_type"), {key: value for key, value in fields.items() if key != "model_type"}
    if not isinstance(name, str):
        raise InputError("expected the field 'model_type', the name of an architecture")
    config: ModelConfig = get_architecture(name).config_class.from_dict(others)
    return config


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
