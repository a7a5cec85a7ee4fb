"""What users time on their own machines, and the rates of the model that follow from it."""
