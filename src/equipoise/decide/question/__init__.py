"""The question and its meaning: fields, question, training, systems."""
