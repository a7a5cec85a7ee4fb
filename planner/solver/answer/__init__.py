"""What an answer holds: ranked plans, reasons, uncertainty, and where results are kept."""
