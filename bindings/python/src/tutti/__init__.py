"""Keeps the copies of a model together while many processes train it."""
