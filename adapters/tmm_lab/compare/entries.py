"""The results of a comparison whose runs have all ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from tmm_adapters.architecture import ModelConfig, config_to_dict, get_architecture
from tmm_core.errors import InputError

from ..bench.machine import describe
from ..data.tokens import bits_per_byte
from ..evaluation import accounts
from ..training.data import Data
from ..training.reporter import BITS
from ..training.runs import Run
from .documents import costs_of, document_bytes
from .folder import Folder
from .models import build_model
from .options import Arm, ComparisonOptions
from .results import Curve, Entry, Results
from .statistics import Difference, paired_difference

__all__ = ["collect_results"]


def collect_results(
    folder: Folder,
    arms: Sequence[Arm],
    options: ComparisonOptions,
    data: Data,
    *,
    configs: Mapping[str, ModelConfig],
    speeds: Mapping[str, accounts.Speeds],
    rates: Mapping[str, float],
    device: str,
) -> Results:
    """Return the results, after what is measured of the trained models."""
    n_bytes = document_bytes(data.held_out)
    runs = {
        arm.label: [Run.open(folder.run(arm.label, f"seed-{seed}")) for seed in range(options.seeds)] for arm in arms
    }
    nats = {
        label: np.stack([costs_of(run, data, batch=options.batch, device=device) for run in runs[label]])
        for label in runs
    }
    reference = nats[arms[0].label]

    def entry(arm: Arm) -> Entry:
        label, config = arm.label, configs[arm.label]
        difference = None if arm is arms[0] else paired_difference(reference, nats[label], n_bytes)
        finals = [bits_per_byte(costs.sum(), data.held_out) for costs in nats[label]]
        curves = tuple(_curve(seed, runs[label][seed], final) for seed, final in enumerate(finals))
        tried = folder["candidates"][label]
        return _entry(label, config, options, speeds[label], rates[label], tried, curves, difference, device)

    return Results(
        entries=tuple(entry(arm) for arm in arms),
        equal=options.equal,
        steps=folder["steps"],
        text={
            "name": folder.source.name,
            "sha256": data.text.sha256,
            "bytes": data.text.n_bytes,
            "documents": data.text.n_documents,
            "held_out_bytes": data.held_out.n_bytes,
            "held_out_documents": len(n_bytes),
        },
        baselines=folder["baselines"],
        machine=describe(),
        options=options.to_dict(),
        decisive=tuple(arm.label for arm in arms[1:] if arm.decides),
        date=time.strftime("%Y-%m-%d"),
    )


def _curve(seed: int, run: Run, final: float) -> Curve:
    """Return what a run measured of a part of the text as it went, and in the end of all."""
    records = [record for record in run.records() if BITS in record]
    schedule, steps = run.schedule(run.parsed().options), run.description["steps"]
    if [record["step"] for record in records] != list(filter(schedule.evaluation_is_due, range(steps + 1))):
        raise InputError(
            f"{run.metrics} lacks evaluations of the run: bring it back from a copy, or remove {run.folder}, and the "
            "same command trains it anew"
        )
    bits = (*(record[BITS] for record in records[:-1]), final)
    return Curve(seed, tuple(record["tokens"] for record in records), bits)


def _entry(
    label: str,
    config: ModelConfig,
    options: ComparisonOptions,
    speeds: accounts.Speeds,
    rate: float,
    tried: Mapping[str, float | None],
    curves: tuple[Curve, ...],
    difference: Difference | None,
    device: str,
) -> Entry:
    """Measure what a model costs."""
    model = build_model(config, device)
    parameters = accounts.count_parameters(model, config.vocab_size)
    shape = {"batch": options.batch, "n": options.max_len}
    return Entry(
        label=label,
        config=config_to_dict(config),
        learning_rate=rate,
        candidates=tried,
        parameters=parameters.total,
        parameters_without_embeddings=parameters.without_embeddings,
        flops_per_token=get_architecture(config.model_type).flops_per_token(config),
        memory_bytes=accounts.peak_bytes(build_model(config, device), config.vocab_size, **shape),
        stored_bytes_per_token=accounts.stored_bytes(model, config.vocab_size, **shape),
        cache_bytes=accounts.cache_bytes(model, config.vocab_size, n=options.max_len),
        training_rate=speeds.training,
        prefill_rate=speeds.prefill,
        decoding_rate=speeds.decoding,
        curves=curves,
        difference=difference,
    )
