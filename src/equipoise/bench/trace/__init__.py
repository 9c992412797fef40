"""Traces of training as torch.profiler (Kineto) writes them: what each rank spends its steps on."""
