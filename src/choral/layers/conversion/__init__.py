"""How layers of a network are found and exchanged, and what each of them computes."""
