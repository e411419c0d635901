"""Importing this registers the Toeplitz MLP Mixer with transformers' Auto classes.

>>> import tmm_adapters.hf
>>> from transformers import AutoConfig
>>> AutoConfig.for_model("tmm", d_model=64).hidden_size
64
"""

import transformers

if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(
        f"tmm_adapters.hf needs transformers 5.0 or newer, and {transformers.__version__} is installed: "
        "pip install 'transformers>=5.0'"
    )

from transformers import AutoConfig, AutoModelForCausalLM

from .cache import TMMCache
from .configuration_tmm import TMMPretrainedConfig
from .modeling_tmm import TMMForCausalLM

__all__ = ["TMMCache", "TMMForCausalLM", "TMMPretrainedConfig"]

AutoConfig.register(TMMPretrainedConfig.model_type, TMMPretrainedConfig)
AutoModelForCausalLM.register(TMMPretrainedConfig, TMMForCausalLM)
