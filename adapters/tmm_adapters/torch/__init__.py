"""The Toeplitz MLP Mixer language model in PyTorch: its modules, its streams, and how it continues texts."""

from ..generation import ContextFullError
from .model import MLP, Block, LanguageModel, TokenMixing
from .outputs import Output
from .streaming import stream_copy, stream_reorder

__all__ = [
    "MLP",
    "Block",
    "ContextFullError",
    "LanguageModel",
    "Output",
    "TokenMixing",
    "stream_copy",
    "stream_reorder",
]
