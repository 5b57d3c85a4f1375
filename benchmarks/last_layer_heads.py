"""The command `onsight`, except that heads see the last layer of a network alone: an ablation.

python benchmarks/last_layer_heads.py train DATA ...
"""

from onsight.cli import main
from onsight.models import head

if __name__ == "__main__":
    head._has_intermediate_layers = lambda net: False
    main()
