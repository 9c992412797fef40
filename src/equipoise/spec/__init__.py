"""What is it? Accelerators, workloads and names as facts with their sources. No durations live here."""
