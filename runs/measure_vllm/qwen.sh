#!/usr/bin/env bash
# A standalone draft in vLLM: Qwen2.5-Coder 0.5B drafts for 1.5B on HumanEval; plain, the stock draft, the hot one.
#
#   runs/measure_vllm/qwen.sh MODELS HUMAN_EVAL.jsonl GSM8K_TRAIN.parquet [PYTHON]
#
# MODELS is the folder that runs/fetch_models/fetch.py filled; PYTHON is of an environment with vLLM and hothead. The
# first call dequantizes the pair to bfloat16 (5 GB in ~/.cache/hothead). Two servers stand ready at a time (some 12 GB),
# so there are two runs: hot against plain, and hot against stock. PROMPTS (5) and TOKENS (96) size them;
# PREPARE=1 stops before the first. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")/../.."
models=$1 human_eval=$2 gsm8k=$3 python=${4:-.venv/bin/python}
asked=${PROMPTS:-5} tokens=${TOKENS:-96}
export VLLM_CPU_KVCACHE_SPACE=1
target=$models/qwen2.5-coder-1.5b-instruct.gguf
draft=$models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
work=out/vllm_qwen
mkdir -p results $work

# 1. What is hot: Python's own library, GSM8K's answers, and the solutions to the problems that are not asked.
if [ ! -f $work/ranking.safetensors ]; then
  tail -n +21 "$human_eval" > $work/counted.jsonl
  stdlib=$($python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
  $python -m hothead rank "$stdlib/*.py" "$gsm8k" $work/counted.jsonl --target "$target" -o $work/ranking.safetensors
fi
$python -c 'import sys; from hothead.vllm_plugin.launch import servable_model as make; [make(s) for s in sys.argv[1:]]' \
  "$target" "$draft"
[ -z "${PREPARE:-}" ] || exit 0

# 2. Greedy, one request at a time.
head -n "$asked" "$human_eval" > $work/human_eval.jsonl
for other in plain full; do
  $python -m hothead bench server --target "$target" --draft "$draft" --method draft_model --num-steps 4 \
    --ranking $work/ranking.safetensors --size 16384 --slots 512 --configs $other,dynamic \
    --prompts $work/human_eval.jsonl -n "$tokens" -o results/vllm_qwen_$other.jsonl --logs $work/$other \
    --dtype bfloat16 --enforce-eager --max-model-len 1024 --max-num-seqs 2
done
