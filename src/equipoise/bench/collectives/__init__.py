"""Timed collectives: what nccl-tests and rccl-tests print, and what torch.distributed takes here."""
