"""The one screen that ``hothead optimize`` ends in. Needs no torch."""

from collections.abc import Sequence

from hothead.plan.schema import DO_NOT_SPECULATE, KEEP_FULL, Plan
from hothead.plan.verify import Verification
from hothead.report.compare import Table, estimate
from hothead.report.curve import interval
from hothead.report.plan_summary import vocabulary

HEADLINES = {
    DO_NOT_SPECULATE: "Do not speculate here: nothing that was tried is shown to beat plain decoding.",
    KEEP_FULL: "Keep the full vocabulary: no smaller one decodes these prompts faster.",
}


def headline(plan: Plan) -> str:
    """What to do, in one line."""
    batch = plan.batches[0]
    named = f"{vocabulary(plan, batch.choice)} of {plan.target_vocab_size} rows"
    pruned = f"Draft with {named}, k = {batch.choice.num_steps}."
    return HEADLINES.get(batch.verdict, pruned)


def checks_table(verification: Verification) -> Table:
    """Predicted beside measured."""
    rows = [
        (
            check.method,
            interval(check.times_plain, ".2f"),
            estimate(check.measured_times_plain),
            f"{100 * check.off:+.1f}",
            interval(check.acceptance_length, ".2f"),
            f"{check.measured_acceptance_length:.2f}",
        )
        for check in verification.checks
    ]
    columns = ("", "x plain, predicted", "measured, 95%", "off by %", "accept, predicted", "measured")
    return Table("Predicted and measured", columns, tuple(rows))


def lines(plan: Plan, verification: Verification, notes: Sequence[str]) -> list[str]:
    """Why, what is kept, whether the run agrees, and what else a reader must know."""
    batch = plan.batches[0]
    choice, limits = batch.choice, batch.limits
    kept = f"Of the full vocabulary's accepted drafts per round it keeps {100 * choice.kept:.1f} %; "
    head = f"a head that took no time would reach {limits.free_head:.2f} times plain decoding."
    found = [f"Why: {batch.reason}.", (kept if choice.size < plan.target_vocab_size else "") + head]
    texts = verification.texts
    if texts.compared:
        equal = f"{texts.equal} of {texts.compared} answers equal plain decoding's token by token"
        notes = [f"Texts: {equal}, {texts.tied} leave it at a tie of logits, {texts.different} differ.", *notes]
    return [*(line[0].upper() + line[1:] for line in found), verification.remark, *plan.remarks, *notes]
