"""How wrong each kind of answer was on held-out data: makers of the records that ship (`make profiles`)."""
