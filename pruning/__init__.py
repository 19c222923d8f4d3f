"""Removal of dead neurons: analysis of a traced network, rules per operation, the plan, the smaller network."""
