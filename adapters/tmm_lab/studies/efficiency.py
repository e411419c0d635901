"""Is a TMM trained more efficiently than other models whose cost grows less than quadratically?

The claim (arXiv 2605.06683): at equal compute and memory a TMM reaches an equal or lower evaluation loss than windowed
and linear attention, Hyena and Mamba 2. The authors' own logs compare a TMM of twice the width of the others; at equal
width it is behind. So the study holds one account equal and reports the others: models of equal FLOPs, or of equal
seconds. At equal FLOPs the authors' pair stands beside them, and in either a TMM with the initial parameters of their
experiments, which begins far above the others.

The verdict is that of `compare.statistics.verdict`. Llama and the masked mixer do not decide, as their cost is
quadratic; what they reach is shown.
"""

from __future__ import annotations

from tmm_adapters.architecture import ModelConfig, get_architecture

from ..compare.options import Arm, ComparisonOptions, width_of
from ..compare.widths import at_cost

__all__ = ["CLAIM", "FULL", "HELD_OUT_BYTES", "QUICK", "arms"]

CLAIM = "at equal compute a TMM reaches an equal or lower loss than other sub-quadratic models"
QUICK = ComparisonOptions(equal="flops", minutes=20.0, seeds=3)
FULL = ComparisonOptions(equal="flops", steps=4000, seeds=5, d_model=256, n_layers=8, max_len=512)
HELD_OUT_BYTES = 262_144


def arms(options: ComparisonOptions) -> list[Arm]:
    """Return the models of the study, the TMM that the claim is about first."""
    from tmm_adapters.tokenizers import ByteTokenizer  # brings NumPy, which help does without

    heads = {"n_heads": 4}
    reference = Arm(label="TMM", architecture="tmm", fields=heads)
    hyena = Arm(label="Hyena", architecture="hyena")
    paper = {"lag_init": "normal", "linear_init": "kaiming"}
    pair = []
    if options.equal == "flops":
        tmm, other = (arm.config(options, ByteTokenizer.vocab_size) for arm in (reference, hyena))
        equal = at_cost(other, _flops, _flops(tmm), tolerance=0.02)
        wide = heads | {"d_model": 4 * round(2 * width_of(equal) / 4)}  # a multiple of its heads
        label = "TMM twice as wide as Hyena"
        pair = [Arm(label=label, architecture="tmm", fields=wide, solved=False, decides=False)]
    return [
        reference,
        Arm(label="flat TMM", architecture="tmm", fields={"n_heads": 0}, decides=False),
        Arm(label="TMM initialised as in the paper", architecture="tmm", fields=heads | paper, decides=False),
        *pair,
        Arm(label="window", architecture="window", fields={"window": 64}),
        Arm(label="linear attention", architecture="linear-attention"),
        hyena,
        Arm(label="tuned Hyena", architecture="hyena-tuned"),
        Arm(label="Mamba 2", architecture="mamba2"),
        Arm(label="Llama", architecture="llama", decides=False),
        Arm(label="masked mixer", architecture="masked-mixer", decides=False),
    ]


def _flops(config: ModelConfig) -> float:
    return get_architecture(config.model_type).flops_per_token(config)
