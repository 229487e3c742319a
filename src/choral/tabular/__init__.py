"""Tables as people have them: a data frame or file in, an ensemble out, with the usual where nothing is said."""
