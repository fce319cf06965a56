"""Targets and drafts: transformers models behind the few calls that the engine makes."""
