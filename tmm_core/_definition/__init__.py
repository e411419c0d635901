"""The products written out in array-API calls: the definition of what the core offers, and the oracle of engines."""
