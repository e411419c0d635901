"""Texts, documents and tokens: where they come from, how they are kept, and in which order training reads them."""
