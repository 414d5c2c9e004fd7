"""Files of weights and their number formats: bytes in, arrays out."""
