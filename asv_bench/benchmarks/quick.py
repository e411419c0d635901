"""The quick set: of every topic one case, with fewer turns; a minute or two on two cores."""

from __future__ import annotations

from tmm_lab.bench import QUICK

from . import ALLOCATORS, decoding, gradients, importing, lengths, memory, packing, product, streaming, training
from .baselines import HISTORIES, PRODUCTS

SHORT = lengths(1024)


class Product(product.Product):
    """At one length."""

    params = (SHORT, (4,), product.Product.params[2])


class ProductAgainst(product.ProductAgainst):
    """At one length."""

    params = (SHORT, (4,), ALLOCATORS, tuple(PRODUCTS))


class GradientsAgainst(gradients.GradientsAgainst):
    """At one length."""

    params = (SHORT, (4,), ALLOCATORS, gradients.GradientsAgainst.params[3])


class Memory(memory.Memory):
    """At one length."""

    params = (SHORT, (4,), memory.Memory.params[2])


class TrainingAgainst(training.TrainingAgainst):
    """At one length, one sequence a step."""

    params = (SHORT, (4,), tuple(training.BASELINES))
    schedule, tokens = QUICK, 1024


class StreamingAgainst(streaming.StreamingAgainst):
    """At one length."""

    params = (SHORT, (4,), tuple(HISTORIES))


class DecodingAgainst(decoding.DecodingAgainst):
    """At one length, what takes seconds."""

    params = (lengths(512), ("authors' decode", "no mixing"))
    schedule = QUICK


class PackingAgainst(packing.PackingAgainst):
    """At one length, of the smaller model."""

    params = (lengths(512), ("joined, default preset",))
    schedule, tokens = QUICK, 1024


class Importing(importing.Import):
    """As it is."""
