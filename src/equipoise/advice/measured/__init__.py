"""What do the user's own runs say? Sweeps and traces read, foretold and searched."""
