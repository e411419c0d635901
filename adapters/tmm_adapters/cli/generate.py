"""`tmm generate`: let a model continue a prompt."""

from __future__ import annotations

import argparse
import sys
import time

from .fields import as_text
from .model_options import add_model_options

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "generate",
        help="let a model continue a prompt",
        description="Write how a model continues a prompt: text to stdout as it comes, figures to stderr.",
    )
    add_model_options(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="how the text begins")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="most tokens to write (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help="0 takes the likeliest token (default: 0.8)"
    )
    parser.add_argument(
        "--top-p", type=float, default=0.95, metavar="X", help="draw from this share of the probability (default: 0.95)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the prompt and its continuation."""
    _check(arguments)
    prompt = as_text("--prompt", arguments.prompt)
    from ..training.runs import model_folder

    folder = model_folder(arguments.dir)
    from ..training.display import printable
    from ..training.frameworks import choose, open_model
    from ..training.measure import continuation

    model, tokenizer = open_model(choose(arguments.framework), folder, device=arguments.device)
    terminal = sys.stdout.isatty()

    def write(text: str) -> None:
        sys.stdout.write(printable(text) if terminal else text)
        sys.stdout.flush()

    write(prompt)
    start = time.perf_counter()
    _, n_tokens = continuation(
        model,
        tokenizer,
        prompt,
        arguments.tokens,
        seed=arguments.seed,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        on_text=write,
    )
    seconds = time.perf_counter() - start
    write("\n")
    reason = "" if n_tokens == arguments.tokens else ", where the text ended or the context was full"
    rate = n_tokens / max(seconds, 1e-9)
    print(f"{n_tokens} tokens in {seconds:.1f} s, {rate:,.0f} tokens/s{reason}; {folder}", file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.prompt:
        raise ValueError("--prompt is empty: give the model some text to begin with")
    if arguments.tokens < 1:
        raise ValueError(f"--tokens must be at least 1, and is {arguments.tokens}")
    if not arguments.temperature >= 0:
        raise ValueError(f"--temperature must be 0 or more, and is {arguments.temperature}")
    if not 0 <= arguments.seed < 1 << 63:
        raise ValueError(f"--seed must be 0 or more and below 2**63, and is {arguments.seed}")
    if not 0 < arguments.top_p <= 1:
        raise ValueError(f"--top-p must be above 0 and at most 1, and is {arguments.top_p}")
