"""Methods judged on the same rows: the trial, the judge, comparisons, maps of function space."""
