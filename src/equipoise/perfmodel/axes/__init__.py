"""What each parallel axis adds to a step: one file an axis, listed in estimate.py."""
