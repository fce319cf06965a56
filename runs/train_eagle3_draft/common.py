"""Makes the modules of the EAGLE-1 demo draft's run importable: import this before them."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "train_demo_draft"))

TAPS = (2, 15, 27)  # of 30 layers: EAGLE-3's low, middle and high, as engines take them where no config says otherwise
