"""What to do: where theory, published and measured evidence meet."""
