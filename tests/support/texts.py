"""Short texts of a few words."""

import numpy as np

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "naïve", "zebras", "wander"]


def prose(seed, n_words):
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, n_words)) + ".\n"


def strings(part):
    return [piece for piece, _ in part.pieces()]
