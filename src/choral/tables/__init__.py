"""Tables: files and data frames read by pandas, columns as numbers, and the search for an ensemble of them."""
