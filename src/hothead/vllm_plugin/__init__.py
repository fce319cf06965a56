"""The vLLM plugin: the drafter's LM head shrunk to the hot tokens, in the engine people run.

vLLM calls :func:`register` in each of its processes (entry point group ``vllm.general_plugins``). Nothing changes
unless ``--additional-config '{"hothead": {...}}'`` asks for it.
"""


def register() -> None:
    """Install the hooks; vLLM is imported only here. Calling it again changes nothing."""
    from hothead.vllm_plugin.hooks import install

    install()
