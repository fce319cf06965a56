"""Figures that others published, to set beside ours: facts, and what they were measured on."""

# Acceptance length against the share of the draft's rows that is left out, greedy, MT-Bench: Llama-3.1-8B-Instruct with
# its EAGLE draft in vLLM (vLLM pull request 24343).
PRUNED_ON = "Llama-3.1-8B on MT-Bench, greedy"
ACCEPTANCE_BY_PRUNED = {0.0: 2.39, 0.50: 2.34, 0.75: 2.28, 0.90: 2.18, 0.99: 1.84}

# Acceptance length as a share of the full vocabulary's, by rows: Llama-3-8B, 128k rows (FR-Spec, arXiv 2502.14856).
RETAINED_ON = "Llama-3-8B (FR-Spec)"
RETAINED_ROWS = 128 * 1024
RETAINED_BY_ROWS = {64 * 1024: 0.977, 32 * 1024: 0.933, 16 * 1024: 0.874, 8 * 1024: 0.805}

# A round of EAGLE-2 with a full and with a static hot vocabulary (32k of 128k rows), microseconds.
ROUND_ON = "Llama-3-8B, 32k of 128k rows, one accelerator"
ROUND_US = {"draft head, once": (482, 62), "draft decode": (975, 483), "draft extend": (3305, 2433)}

# Speed over plain decoding, all of Spec-Bench: Llama-3-8B-Instruct, 32k of 128k rows (SGLang pull request 3822).
SPEED_ON = "Llama-3-8B, 32k of 128k rows"
TIMES_PLAIN = {"full": 1.82, "static": 2.01, "full_refresh": 1.94}
