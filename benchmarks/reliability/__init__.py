"""What `faults.py` and `kills.py` share."""
