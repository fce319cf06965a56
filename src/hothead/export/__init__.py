"""Files of other tools, in and out: token maps, token counts, pruned drafts, and the commands that serve them."""
