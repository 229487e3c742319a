"""choral: a calibrated ensemble for about the price of one network."""
