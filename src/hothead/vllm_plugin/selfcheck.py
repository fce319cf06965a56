"""A running engine's own word on its slots, by vLLM's way of asking workers. Nothing is imported unless asked for.

Start with ``--worker-extension-cls hothead.vllm_plugin.selfcheck.SelfCheck``; then ``llm.collective_rpc(
"hothead_check")`` offline, or ``POST /collective_rpc`` with ``{"method": "hothead_check"}`` of a server under
``VLLM_SERVER_DEV_MODE=1``. All ranks answer together, between two steps.
"""

from typing import Any

from hothead.errors import InputError
from hothead.vllm_plugin import guard
from hothead.vllm_plugin.drafter import COUNTERS, HotDrafter


class SelfCheck:
    """What vLLM adds to its worker class."""

    model_runner: Any

    def hothead_check(self) -> dict[str, Any] | None:
        """What is wrong (a list, empty unless there is a bug), the sizes and the counters; None where it is off.

        The slot table is compared with itself, every slot's row with the model's, and the hot logits, packed copies
        and all, with the model's own.
        """
        runner = self.model_runner
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        hot: HotDrafter | None = getattr(drafter, "hothead", None)
        if drafter is None or hot is None:
            return None
        wrong = hot.check()
        try:
            guard.check_logits(drafter.model.compute_logits, hot.logits, hot.head.target_ids, hot.source.weight)
        except InputError as error:
            wrong.append(str(error))
        return {
            "wrong": wrong,
            "sizes": hot.describe(),
            "counters": dict(zip(COUNTERS, hot.counters.tolist(), strict=True)),
        }
