"""The quick set: of every topic one case, with fewer turns; a minute or two on two cores."""

from __future__ import annotations

from tmm_lab.bench import ALLOCATORS, HISTORIES, QUICK, RIVALS

from . import decoding, gradients, importing, memory, packing, product, streaming, training


class Product(product.Product):
    """At one length."""

    params = ((1024,), (4,), ("numba", "torch", "array_api"))


class ProductAgainst(product.Against):
    """At one length."""

    params = ((1024,), (4,), tuple(RIVALS), ALLOCATORS)


class GradientsAgainst(gradients.Against):
    """At one length."""

    params = ((1024,), (4,), ALLOCATORS)


class Memory(memory.Memory):
    """At one length."""

    params = ((1024,), (4,), ("numba", "torch"))


class TrainingAgainst(training.Against):
    """At one length, one sequence a step."""

    params = ((1024,), (4,))
    pace, tokens_a_step = QUICK, 1024


class StreamingAgainst(streaming.Against):
    """At one length."""

    params = ((1024,), (4,), tuple(HISTORIES))


class DecodingAgainst(decoding.Against):
    """At one length, what takes seconds."""

    params = ((512,), ("authors' decode", "no mixing"))
    pace = QUICK


class PackingAgainst(packing.Against):
    """At one length, of the smaller model."""

    params = ((512,), ("joined, default preset",))
    pace, tokens_a_step = QUICK, 1024


class Import(importing.Import):
    """As it is."""
