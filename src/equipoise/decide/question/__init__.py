"""What is asked, and what it means: the fields, the question, the training, the systems."""
