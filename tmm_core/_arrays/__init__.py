"""What the formulae need of arrays and the array API lacks: library, device, dtype by name, exchange, traced values."""
