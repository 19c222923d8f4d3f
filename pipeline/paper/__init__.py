"""The paper's tables: its printed FLOPs beside what its own convention gives."""
