"""`tmm convert`: the research code's checkpoint as a model folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from tmm_adapters.architecture import get_architecture
from tmm_adapters.files import require_empty
from tmm_adapters.pretrained import read_tensors, save_params

from ..progress import note
from .fields import path, path_as_given

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "convert",
        help="convert a checkpoint of the paper's research code to a model folder",
        description="Read a checkpoint of the paper's research code, recognise the variant by names and shapes, and "
        "write a model folder.",
    )
    parser.add_argument("source", type=path, metavar="IN", help="safetensors file of the parameters")
    parser.add_argument("dir", type=path, metavar="DIR", help="the model folder to write, new or empty")
    parser.add_argument(
        "--mean",
        action=argparse.BooleanOptionalAction,
        help="for softplus lags: whether the model divides by their running sum, which no tensor tells",
    )
    parser.add_argument(
        "--tokenizer",
        type=path_as_given,
        metavar="FILE",
        help="tokenizer.json of the model, or 'bytes' where tokens are bytes and an end-of-text (default: none, and no "
        "text can be read or written)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what the model is."""
    require_empty(arguments.dir)
    tensors = read_tensors(arguments.source)
    from tmm_adapters.research_code import from_research_code
    from tmm_adapters.tokenizers import ByteTokenizer, check_fits, read_tokenizer

    config, params = from_research_code(tensors, mean=arguments.mean)
    tokenizer = None
    if arguments.tokenizer is not None:
        given = arguments.tokenizer
        tokenizer = ByteTokenizer() if given == "bytes" else read_tokenizer(Path(given))
        check_fits(tokenizer, config.vocab_size)
    save_params(arguments.dir, params, config, tokenizer)
    size = sum(array.size for array in params.values())
    if tokenizer is None:
        note("without a tokenizer (--tokenizer) the model knows tokens only; tmm generate and tmm eval need one")
    print(f"{arguments.dir}: {get_architecture(config.model_type).summary(config)}, {size:,} parameters")
    return 0
