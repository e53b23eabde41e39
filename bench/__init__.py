"""Benchmarks. `python -m bench` runs all of them; README.md says what each row means."""
