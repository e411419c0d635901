"""One small model of every variant: those that `tmm agree` compares."""

from tmm_lab.agree.variants import VARIANTS, random_ids, random_params

__all__ = ["VARIANTS", "random_ids", "random_params"]
