"""What to do? Published, measured and modelled evidence weighed into one answer, with its reasons."""
