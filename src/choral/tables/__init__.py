"""Tables: reading with pandas, encoding of columns, and the search for an ensemble."""
