"""Adapters of dpwa to frameworks."""
