"""The Toeplitz MLP Mixer language model in PyTorch: its modules, its streams, and how it continues texts."""

from .generation import ContextFullError
from .model import MLP, Block, LanguageModel, TokenMixing

__all__ = ["MLP", "Block", "ContextFullError", "LanguageModel", "TokenMixing"]
