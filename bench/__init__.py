"""Benchmarks. `python -m bench` runs all of them; README.md explains each row."""
