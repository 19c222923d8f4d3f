"""Removal of dead neurons: what is dead, and what is left."""
