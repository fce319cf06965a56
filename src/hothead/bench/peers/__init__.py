"""Other engines, asked the same prompts in the same run: transformers, llama.cpp, vLLM."""
