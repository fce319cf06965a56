#!/usr/bin/env bash
# The result files behind docs/results.md, and that page made from them: one command.
#
#   runs/reproduce/run.sh SPEC_BENCH.jsonl GSM8K_TRAIN.parquet [PYTHON] [VLLM_PYTHON]
#
# VLLM_PYTHON is of an environment with vLLM and hothead; without one vLLM is not measured. runs/measure_engine/run.sh says
# where it finds other engines; ENGINE_STAGES="engines shapes qwen_maps qwen_own qwen" measures the Qwen pair too. The
# EAGLE-3 draft has a page and a command of its own (docs/eagle3.md), its speed on Spec-Bench aside. What is in results/ is
# kept and goes on where it ended, so delete a file to measure it again. The first part may share the machine, the others
# measure time: leave it alone meanwhile. `runs/reproduce/run.sh --page` writes the page alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
page() { "$1" runs/reproduce/page.py results docs/results.md; }
if [ "${1:-}" = --page ]; then
  page "${2:-.venv/bin/python}"
  exit
fi
spec_bench=$1 gsm8k=$2 python=${3:-.venv/bin/python} vllm_python=${4:-}

runs/measure_acceptance/run.sh "$spec_bench" "$gsm8k" "$python"
runs/measure_demo_draft/run.sh "$spec_bench" "$gsm8k" "$python"
runs/measure_eagle3/run.sh speed "$spec_bench" "$python"
runs/measure_plan/run.sh "$spec_bench" "$python"
[ -f results/engine_pass.json ] || "$python" runs/measure_engine/pass.py -o results/engine_pass.json
PYTHON=$python DATA=$(dirname "$spec_bench") VLLM_PYTHON=$vllm_python runs/measure_engine/run.sh ${ENGINE_STAGES:-engines shapes}
[ -z "$vllm_python" ] || runs/measure_vllm/run.sh "$spec_bench" "$vllm_python"
page "$python"
