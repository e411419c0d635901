"""The parameters of the language model: names, shapes, first values and their cost; public through `tmm_core.lm`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._arrays.exchange import Array, dtype_name
from .._arrays.plain import plain
from .._dispatch.checks import check_kind
from ..config import TMMConfig
from ..errors import InputError, InputTypeError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "check_config",
    "check_params",
    "decayed_names",
    "flops_per_token",
    "frozen_names",
    "init_params",
    "parameter_shapes",
]

_TOGETHER = "do both belong together?"


def check_config(config: TMMConfig) -> None:
    """Refuse what is no configuration.

    Raises
    ------
    TypeError
        If it is no `TMMConfig`.
    """
    check_kind("config", config, TMMConfig, "make one, such as TMMConfig.preset('paper')")


def parameter_shapes(config: TMMConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by name; linear weights are (out, in).

    >>> parameter_shapes(TMMConfig())["blocks.0.mix.lags"]
    (4, 512)
    """
    check_config(config)
    d, width = config.d_model, config.mlp_width
    lags = (config.heads, config.lags) if config.kernel_size == 1 else (config.heads, config.kernel_size, config.lags)
    norm = {"weight": (d,)} if config.norm == "rms" else {"weight": (d,), "bias": (d,)}
    block: dict[str, tuple[int, ...]] = {f"mlp_norm.{name}": shape for name, shape in norm.items()}
    block |= {
        "mlp.up.weight": (width, d),
        "mlp.up.bias": (width,),
        "mlp.down.weight": (d, width),
        "mlp.down.bias": (d,),
    }
    block |= {f"mix_norm.{name}": shape for name, shape in norm.items()}
    for layer in ("", "2")[: config.mix_layers]:
        block["mix.lags" + layer] = lags
        if config.position_bias:
            block["mix.bias" + layer] = (config.heads, config.max_len)
    if config.has_projections:
        block |= {"mix.in_proj.weight": (d, d), "mix.in_proj.bias": (d,), "mix.out_proj.weight": (d, d)}
        if config.out_proj_bias:
            block["mix.out_proj.bias"] = (d,)
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (config.vocab_size, d)}
    for i in range(config.n_layers):
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
    if config.final_norm:
        shapes |= {f"final_norm.{name}": shape for name, shape in norm.items()}
    if not config.tie_embeddings:
        shapes["unembed.weight"] = (config.vocab_size, d)
    return shapes


def frozen_names(config: TMMConfig) -> frozenset[str]:
    """Return the names of the parameters that training must leave as they are."""
    endings: tuple[str, ...] = {
        "none": (),
        "lags": (".mix.lags", ".mix.lags2"),
        "projections": tuple(f".mix.{p}_proj.{part}" for p in ("in", "out") for part in ("weight", "bias")),
    }[config.frozen]
    return frozenset(name for name in parameter_shapes(config) if name.endswith(endings or "\0"))


def decayed_names(config: TMMConfig) -> frozenset[str]:
    """Return the names of the parameters that weight decay draws to zero: the weights of linear maps.

    Not lags, biases or norms, nor the embedding, whose rare tokens would fade.

    >>> sorted(decayed_names(TMMConfig(n_layers=1, projections=False)))
    ['blocks.0.mlp.down.weight', 'blocks.0.mlp.up.weight', 'unembed.weight']
    """
    shapes = parameter_shapes(config)
    return frozenset(name for name, shape in shapes.items() if len(shape) == 2 and not _is_table(name))


def check_params(params: Mapping[str, Array], config: TMMConfig) -> None:
    """Refuse parameters that are not those of `config`.

    Raises
    ------
    TypeError
        If one is no floating array, or the arguments are other things, such as in another order.
    ValueError
        If names or shapes differ, which the message lists, or the memory of one has been freed.
    """
    check_kind("params", params, Mapping, "the order is (params, …, config), and params are arrays by name")
    check_config(config)
    # Before anything is listed: a damaged configuration may ask for any number of blocks.
    if config.n_layers > len(params):
        raise InputError(f"params are {len(params)} arrays, too few for n_layers={config.n_layers}: {_TOGETHER}")
    for name, p in params.items():
        kind = dtype_name(p.dtype) if hasattr(p, "dtype") else type(p).__name__
        if kind not in ("float16", "bfloat16", "float32", "float64"):
            raise InputTypeError(
                f"{name} must be a floating array, got {kind}: convert it first, for example to float32"
            )
        plain(name, p)
    shapes = parameter_shapes(config)
    faults = [f"{name} is missing" for name in shapes if name not in params]
    faults += [f"{name} is unknown" for name in params if name not in shapes]
    faults += [
        f"{name} has the shape {tuple(params[name].shape)}, expected {shape}"
        for name, shape in shapes.items()
        if name in params and tuple(params[name].shape) != shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise InputError(f"params do not fit the configuration: {'; '.join(faults[:5])}{more}; {_TOGETHER}")


def init_params(config: TMMConfig, rng: np.random.Generator) -> dict[str, Array]:
    """Draw initial parameters, the same for every framework.

    Linear maps are drawn as `config.linear_init` says, the embedding is N(0, embed_std^2), norms are the identity and
    position biases zero. `config.lag_init` chooses the lags:

    - `normal`: N(0, 2/n) for n lags, as in the paper; with softplus these are the raw values;
    - `shift`: head i hands on the token i positions back;
    - `decay`: head i weighs the past by exp(-j / tau_i), tau from 1 to n in geometric steps, scaled to a unit sum of
      squares, so that independent inputs keep their scale.

    Parameters
    ----------
    config : TMMConfig
        The model.
    rng : numpy.random.Generator
        The only source of random numbers.

    Returns
    -------
    dict of float32 NumPy arrays
        By name, in the order of `parameter_shapes`.

    Raises
    ------
    TypeError
        If `rng` is no NumPy generator.

    Examples
    --------
    >>> import numpy as np
    >>> init_params(TMMConfig(), np.random.default_rng(0))["blocks.0.mix.in_proj.bias"].shape
    (256,)
    """
    import numpy as np

    if not isinstance(rng, np.random.Generator):
        raise InputTypeError(
            f"rng must be a numpy.random.Generator, got {type(rng).__name__}: make one by numpy.random.default_rng(0)"
        )

    def draw(name: str, shape: tuple[int, ...]) -> Array:
        *_, layer, part = name.split(".")
        if part.startswith("lags"):
            return _initial_lags(config, rng, shape)
        if layer == "mix":  # a position bias
            return np.zeros(shape)
        if layer.endswith("norm"):
            return np.ones(shape) if part == "weight" else np.zeros(shape)
        if layer == "embed":
            return rng.standard_normal(shape) * config.embed_std
        fan_in = config.mlp_width if layer == "down" else config.d_model
        if config.linear_init == "uniform":
            return rng.uniform(-1, 1, shape) / math.sqrt(fan_in)
        if part == "bias":
            return np.zeros(shape)
        if config.linear_init == "kaiming":
            return rng.standard_normal(shape) * math.sqrt(2 / fan_in)
        ends = 2 * config.n_layers if layer in ("down", "out_proj") else 1  # the sum of all branches keeps its scale
        return rng.standard_normal(shape) / math.sqrt(fan_in * ends)

    return {name: draw(name, shape).astype(np.float32) for name, shape in parameter_shapes(config).items()}


def _initial_lags(config: TMMConfig, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return initial lags, as raw values whose softplus is meant where the configuration takes it."""
    import numpy as np

    heads, k = config.heads, config.lags
    if config.lag_init == "normal":
        return rng.standard_normal(shape) * math.sqrt(2 / k)
    # A small positive noise lets heads that start alike part, and gives every lag a softplus to start from.
    lags = 0.01 / k * rng.uniform(0.5, 1.5, shape)
    direct = lags if lags.ndim == 2 else lags[:, -1, :]  # the last row of a kernel reads its own channel
    if config.lag_init == "shift":
        direct[np.arange(heads), np.arange(heads) % k] += 1
    else:
        tau = np.geomspace(1, k, heads) if heads > 1 else np.asarray([math.sqrt(k)])
        decay = np.exp(-np.arange(k) / tau[:, None])
        direct += decay / np.linalg.norm(decay, axis=1, keepdims=True)
    return lags + np.log(-np.expm1(-lags)) if config.softplus else lags  # the inverse of softplus


def flops_per_token(config: TMMConfig) -> int:
    """Return the floating-point operations that training takes a token: three times those of the forward pass.

    Counted are the linear maps, 2 per weight, and the Toeplitz products at the length `max_len`: two complex
    transforms, of 5 n log2(n) each, 8 per kernel row for the product of spectra and 8 for the turns there and back, for
    each channel.
    """
    shapes = parameter_shapes(config)
    linear = sum(math.prod(shapes[name]) for name in decayed_names(config))
    linear += config.vocab_size * config.d_model if config.tie_embeddings else 0
    product = 10 * math.log2(config.max_len) + 8 * config.kernel_size + 8
    mixing = config.n_layers * config.mix_layers * config.d_model * product
    return round(3 * (2 * linear + mixing))


def _is_table(name: str) -> bool:
    """Return whether a parameter with two axes is looked up or transformed, not multiplied as a matrix."""
    return name == "embed.weight" or name.split(".")[-1].rstrip("2") in ("lags", "bias")
