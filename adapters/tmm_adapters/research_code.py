"""Models of the paper's research code (GitHub ethan-w-roland/ToeplitzMixers), read by their own names.

There are two families. The paper's code (v1) keeps a linear layer and a filter for each head, stores lags as (1, n) or,
for kernels, (m, n), and mixes channels first; its later code (v2) keeps one matrix for all heads and softplus lags, and
mixes tokens first. Both multiply activations laid out (batch, channels, time) from the right, which is our product. Row
i of a kernel reads the channel m-1-i places below, as ours does: the code puts m-1 zero channels below the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tmm_core import TMMConfig, lm
from tmm_core.backend import share
from tmm_core.errors import InputError

__all__ = ["from_research_code"]

# The authors' names and ours; a group called `head` numbers tensors that make one of ours together.
_MIXER = r"mixer_blocks\.(\d+)\.token_mixing_layer\."
_V1 = {
    r"input_layer\.weight": r"embed.weight",
    r"mixer_blocks\.(\d+)\.channel_norm\.(weight|bias)": r"blocks.\1.mlp_norm.\2",
    r"mixer_blocks\.(\d+)\.channel_mixing_layer\.0\.(weight|bias)": r"blocks.\1.mlp.up.\2",
    r"mixer_blocks\.(\d+)\.channel_mixing_layer\.3\.(weight|bias)": r"blocks.\1.mlp.down.\2",
    r"mixer_blocks\.(\d+)\.token_norm\.(weight|bias)": r"blocks.\1.mix_norm.\2",
    _MIXER + r"proj_head\.(?P<head>\d+)\.(weight|bias)": r"blocks.\1.mix.in_proj.\3",
    _MIXER + r"(?:mixer_heads\.(?P<head>\d+)\.)?(?:0\.)?weight": r"blocks.\1.mix.lags",
    _MIXER + r"(?:mixer_heads\.(?P<head>\d+)\.)?(?:0\.)?bias": r"blocks.\1.mix.bias",
    _MIXER + r"(?:mixer_heads\.(?P<head>\d+)\.)?3\.weight": r"blocks.\1.mix.lags2",
    _MIXER + r"(?:mixer_heads\.(?P<head>\d+)\.)?3\.bias": r"blocks.\1.mix.bias2",
    _MIXER + r"out_proj\.(weight|bias)": r"blocks.\1.mix.out_proj.\2",
    r"output_layer\.weight": r"unembed.weight",
}
_V2 = {
    r"inp_embed\.weight": r"embed.weight",
    r"blocks\.(\d+)\.mlp_norm\.weight": r"blocks.\1.mlp_norm.weight",
    r"blocks\.(\d+)\.mlp\.fc1\.(weight|bias)": r"blocks.\1.mlp.up.\2",
    r"blocks\.(\d+)\.mlp\.fc2\.(weight|bias)": r"blocks.\1.mlp.down.\2",
    r"blocks\.(\d+)\.mixer_norm\.weight": r"blocks.\1.mix_norm.weight",
    r"blocks\.(\d+)\.mixer\.inp_proj\.(weight|bias)": r"blocks.\1.mix.in_proj.\2",
    r"blocks\.(\d+)\.mixer\.weight_raw": r"blocks.\1.mix.lags",
    r"blocks\.(\d+)\.mixer\.bias": r"blocks.\1.mix.bias",
    r"blocks\.(\d+)\.mixer\.out_proj\.weight": r"blocks.\1.mix.out_proj.weight",
    r"out_norm\.weight": r"final_norm.weight",
    r"out_embed\.weight": r"unembed.weight",
}


def from_research_code(tensors: Mapping[str, Any], *, mean: bool | None = None) -> tuple[TMMConfig, dict[str, Any]]:
    """Return the configuration and the parameters of a model of the paper's research code.

    Parameters
    ----------
    tensors : mapping of names to arrays
        The state dict of the research code's model: arrays of any library, under their own names, also with the
        prefixes that compiled and distributed models put before them. Where names begin with `param.`, all others are
        left out: results that a file holds beside the parameters.
    mean : bool, optional
        Whether a model with softplus lags divides by their running sum, which its tensors do not tell.

    Returns
    -------
    config : TMMConfig
        The variant, recognised by names and shapes.
    params : dict of NumPy arrays
        Under the names of `tmm_core.lm`, in the tensors' dtype. The map is linear, so gradients convert alike.

    Raises
    ------
    TypeError
        If a tensor is no array.
    ValueError
        If names are unknown or missing, shapes do not fit together, or `mean` is needed and not given.
    """
    marked = {name.removeprefix("param."): p for name, p in tensors.items() if str(name).startswith("param.")}
    tensors = marked or tensors
    plain = {_plain(name) for name in tensors}
    v2 = "inp_embed.weight" in plain
    if not v2 and "input_layer.weight" not in plain:
        raise InputError(
            "expected a state dict of the authors' research code, with input_layer.weight or inp_embed.weight; "
            f"got {len(tensors)} tensors with names such as {sorted(plain)[:3]}"
        )
    if v2 and mean is None:
        raise InputError(
            "this model has softplus lags, and no tensor tells whether products are divided by their running sum: "
            "pass mean=True or mean=False (tmm convert --mean or --no-mean)"
        )
    if not v2 and mean:
        raise InputError("mean=True is for models with softplus lags (weight_raw), which this is not: leave mean out")
    groups = _group(tensors, _V2 if v2 else _V1)
    params = {name: _merge(name, parts, v2) for name, parts in groups.items()}
    config = _recognise(params, groups, v2, bool(mean))
    lm.check_params(params, config)
    return config, {name: params[name] for name in lm.parameter_shapes(config)}


def _group(tensors: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, dict[int | None, Any]]:
    """Return the tensors of each of our parameters by head; None where the authors' tensor is whole."""
    groups: dict[str, dict[int | None, Any]] = {}
    unknown = []
    for theirs, tensor in tensors.items():
        plain = _plain(theirs)
        found = next(((m, ours) for pattern, ours in names.items() if (m := re.fullmatch(pattern, plain))), None)
        if found is None:
            unknown.append(plain)
            continue
        match, ours = found
        head = match.groupdict().get("head")
        parts = groups.setdefault(match.expand(ours), {})
        key = None if head is None else int(head)
        if key in parts:
            raise InputError(f"{theirs} and another tensor both give {match.expand(ours)}: a mix of two variants?")
        parts[key] = _to_numpy(tensor)
    if unknown:
        raise InputError(
            f"unknown tensors {sorted(unknown)[:5]} ({len(unknown)} in all): not a model that is known here"
        )
    return groups


def _plain(name: str) -> str:
    """Return a tensor's name without what torch.compile and DistributedDataParallel put before it."""
    return re.sub(r"^((_orig_mod|module)\.)+", "", str(name))


def _to_numpy(tensor: Any) -> Any:
    return share(tensor.detach().cpu() if hasattr(tensor, "detach") else tensor, np)


def _merge(name: str, parts: Mapping[int | None, Any], v2: bool) -> Any:
    """Return one of our parameters: heads in order, lags as (h, k) or (h, m, k)."""
    heads = [parts[key] for key in sorted(parts, key=lambda key: -1 if key is None else key)]
    if parts.keys() != {None} and parts.keys() != set(range(len(heads))):
        raise InputError(
            f"{name} is made of the heads {sorted(map(str, parts))}: expected 0 to {len(heads) - 1}, each once"
        )
    if len({part.shape for part in heads}) > 1:
        raise InputError(f"{name}: the heads differ in shape: {[part.shape for part in heads]}")
    if v2 or ".mix." not in name or ".out_proj." in name:
        return heads[0]
    if ".in_proj." in name:
        return np.concatenate(heads)
    stacked = np.stack(heads)  # lags (h, m, k), bias (h, n)
    return stacked[:, 0] if stacked.ndim == 3 and stacked.shape[1] == 1 else stacked


def _recognise(params: Mapping[str, Any], groups: Mapping[str, Any], v2: bool, mean: bool) -> TMMConfig:
    """Return the variant that names and shapes tell."""
    telling = ["embed.weight", "blocks.0.mlp.up.weight", "blocks.0.mix.lags", "blocks.0.mix.bias"]
    missing = [name for name in telling if name not in params]
    if missing:
        raise InputError(f"the tensors that give {', '.join(missing)} are missing: is the state dict whole?")
    embed, up, lags, bias = (params[name] for name in telling)
    if (embed.ndim, up.ndim, bias.ndim) != (2, 2, 2) or lags.ndim not in (2, 3):
        shapes = "; ".join(f"{name} {params[name].shape}" for name in telling)
        raise InputError(f"expected two axes, or three of lags with a kernel, and got {shapes}")
    heads = len(lags) if v2 or None not in groups["blocks.0.mix.lags"] else 0
    return TMMConfig(
        vocab_size=embed.shape[0],
        max_len=bias.shape[-1],
        d_model=embed.shape[1],
        n_layers=1 + max(int(name.split(".")[1]) for name in params if name.startswith("blocks.")),
        n_heads=heads,
        kernel_size=lags.shape[1] if lags.ndim == 3 else 1,
        mix_layers=2 if "blocks.0.mix.lags2" in params else 1,
        out_proj_bias=not v2,
        softplus=v2,
        mean=mean,
        d_mlp=up.shape[0],
        activation="gelu_tanh" if v2 else "silu",
        norm="rms" if v2 else "layer",
        final_norm=v2,
        order="mix_first" if v2 else "mlp_first",
        tie_embeddings="unembed.weight" not in params,
    )
