"""What does this machine do? Measures and parses: topology, collectives, traces, training. Fits nothing."""
