"""Builds the facts that the scheduler reads, from custom resources and from core objects."""
