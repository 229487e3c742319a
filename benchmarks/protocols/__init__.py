"""The 59 tables and figures of the five papers that choral implements, as values."""

from . import emp, packed, pat, sae, sebays
from .protocol import Protocol

PAPERS = {"SeBayS": sebays, "SAE": sae, "EMP": emp, "PAT": pat, "Packed-Ensembles": packed}
PROTOCOLS: dict[str, Protocol] = {p.id: p for module in PAPERS.values() for p in module.PROTOCOLS}
