"""What budget and deadline allow: the most tokens, or the largest model."""
