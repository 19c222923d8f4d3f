"""Formats: how a sparse network is laid out in bytes."""
