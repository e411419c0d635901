"""What researchers do with language models: texts, training runs, evaluation, operator theory, benchmarks, `tmm`."""
