"""Puts `pages` where the tests of this folder find it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
