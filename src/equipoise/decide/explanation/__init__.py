"""Explains a recommendation: alternatives, reasons, error records, similar published results."""
