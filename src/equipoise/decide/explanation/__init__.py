"""What belongs to a choice: alternatives, reasons, records of accuracy, what was published nearby."""
