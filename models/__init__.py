"""Nouns: networks and their registry, topologies, sparse models, and what a network costs."""
