"""What do the links mean? Topologies and collectives as rates, verdicts and sentences."""
