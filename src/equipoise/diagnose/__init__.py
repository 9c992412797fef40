"""What do my measurements mean? Links, sweeps, watched runs, steps, stragglers: records in, findings out."""
