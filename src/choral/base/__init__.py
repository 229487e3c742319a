"""What everything else stands on: errors, values, seeds, draws."""
