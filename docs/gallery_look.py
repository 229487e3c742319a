"""Settings of the tutorials' figures."""

import matplotlib.pyplot as plt


def look(gallery_conf: dict, name: str) -> None:
    """Make figures small and plain before each tutorial."""
    plt.rcdefaults()
    plt.rcParams.update(
        {
            "figure.figsize": (6.4, 3.6),
            "figure.dpi": 110,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
