"""`python -m tests.conformance` prints, for each layer, its paper, its peer and the largest difference seen."""

from .battery import table
from .layer_rows import ROWS_OF_LAYERS

for part, paper, peer, largest in table(ROWS_OF_LAYERS):
    print(f"| {part} | {paper} | {peer} | {largest:.1e} |")
