"""Dynamic vocabularies: what slots and policies keep of the full vocabulary's acceptance, from ``hothead curve``."""

from collections.abc import Sequence
from pathlib import Path

from layout import MISSING, between, percent, table

from hothead.dynamic import FULL_REFRESH
from hothead.replay.curve import AcceptanceCurves, DynamicResult, Interval, read_curves

FILES = {
    "curve_slots.json": "In domain: the ranking is of the target's own answers, the prompts are of all tasks",
    "curve_slots_out_of_domain.json": "Out of domain: the ranking is of GSM8K's answers alone, the prompts are of all "
    "tasks but math_reasoning",
}


def in_and_out_of_domain(results: Path) -> Sequence[str]:
    """Accepted drafts kept, by rows, slots and policy."""
    found = {name: title for name, title in FILES.items() if (results / name).exists()}
    if not found:
        return ()
    blocks = [
        "## Slots: acceptance kept with a quarter and a tenth of the rows",
        "Accepted drafts per round as a share of the full vocabulary's on the same answers, (L - 1) / (L_full - 1), "
        "in per cent. Rows count slots too: every column of a line holds equally many, and the first has no slots. "
        "100 can be passed, as a small vocabulary lacks wrong tokens too. Greedy; `full_refresh` is the published "
        "dynamic vocabulary, which has no slots but counts and sorts all rows anew each round.",
    ]
    for name, title in found.items():
        curves = read_curves(results / name)
        blocks += [f"{title}. `results/{name}`, k = {curves.settings.num_steps[0]}:", _table(curves), _best(curves)]
    return blocks


def _table(curves: AcceptanceCurves) -> str:
    dynamic = _overall(curves)
    slots = sorted({found.slots for found in dynamic if found.slots})
    rows = []
    for total in sorted({_rows(found) for found in dynamic}, reverse=True):
        static = curves.curve().kept.at(curves.index(total))
        for policy in dict.fromkeys(found.policy for found in dynamic):
            of_policy = {found.slots: found for found in dynamic if (_rows(found), found.policy) == (total, policy)}
            cells = [_kept(of_policy[count].kept) if count in of_policy else MISSING for count in slots]
            first = _kept(of_policy[0].kept) if policy == FULL_REFRESH else _kept(static)
            rows.append((f"{total:,} ({percent(total / curves.sizes[-1], 0)} %)", policy, first, *cells))
    return table(("rows", "policy", "no slots", *(f"{count} slots" for count in slots)), rows)


def _best(curves: AcceptanceCurves) -> str:
    """The policy and number of slots that keep most, in a sentence."""
    dynamic = [found for found in _overall(curves) if found.slots]
    said = []
    for total in sorted({_rows(found) for found in dynamic}, reverse=True):
        best = max((found for found in dynamic if _rows(found) == total), key=lambda found: found.kept.value)
        said.append(
            f"with {total:,} rows {best.slots} slots and `{best.policy}` ({_kept(best.kept)} %; "
            f"{percent(1 - best.coverage)} % of the tokens missed, {100 * best.rows_copied / best.tokens:.0f} rows "
            "copied for 100 tokens)"
        )
    return f"Most is kept {'; '.join(said)}."


def _overall(curves: AcceptanceCurves) -> list[DynamicResult]:
    k, name = curves.settings.num_steps[0], curves.rankings[0].name
    return [
        found for found in curves.dynamic if (found.ranking, found.num_steps, found.group) == (name, k, curves.overall)
    ]


def _rows(found: DynamicResult) -> int:
    return found.size + found.slots


def _kept(found: Interval) -> str:
    scaled = [None if value is None else 100 * value for value in (found.value, found.low, found.high)]
    assert scaled[0] is not None
    return between(Interval(value=scaled[0], low=scaled[1], high=scaled[2]), ".1f")
