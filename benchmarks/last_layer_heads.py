"""An ablation: the command `onsight` with heads that use only the last layer of a network.

python benchmarks/last_layer_heads.py train DATA ...
"""

from onsight.cli import main
from onsight.models import head

if __name__ == "__main__":
    head._has_intermediate_layers = lambda net: False
    main()
