"""At home in the Hugging Face world: importing this registers the Toeplitz MLP Mixer with transformers' Auto classes.

>>> import tmm_adapters.hf
>>> from transformers import AutoConfig
>>> AutoConfig.for_model("tmm", d_model=64).hidden_size
64
"""

from importlib.metadata import version

from tmm_core.errors import NotFoundError

if int(version("transformers").partition(".")[0]) < 5:
    raise NotFoundError(
        f"transformers {version('transformers')} is too old for tmm_adapters.hf: pip install 'transformers>=5.0'"
    )

from transformers import AutoConfig, AutoModelForCausalLM

from .cache import TMMCache
from .configuration_tmm import TMMPretrainedConfig
from .modeling_tmm import TMMForCausalLM

__all__ = ["TMMCache", "TMMForCausalLM", "TMMPretrainedConfig"]

AutoConfig.register(TMMPretrainedConfig.model_type, TMMPretrainedConfig)
AutoModelForCausalLM.register(TMMPretrainedConfig, TMMForCausalLM)
