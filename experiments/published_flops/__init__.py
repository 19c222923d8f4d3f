"""The paper's tables: printed FLOPs beside those that its own convention computes."""
