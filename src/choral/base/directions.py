"""Which way measures are better: one list, for stopping, choosing, ranking and marking alike."""

_GROWING = ("accuracy", "auroc", "average_precision", "exact_match", "f1", "r2")


def grows(name: str) -> bool:
    """Return whether a measure, whatever stands before its name, grows as predictions get better; all others shrink.

    >>> [grows(n) for n in ("exact_match", "member_accuracy", "ood_auroc", "aupr_out", "nll", "c_nll")]
    [True, True, True, True, False, False]
    """
    return name.endswith(_GROWING) or name.startswith("aupr_")
