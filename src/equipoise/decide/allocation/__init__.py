"""Several trainings on one pool of accelerators: who gets how many, and when."""
