"""A GPU is assumed to be there, because nobody asks."""

import torch

# expect: always-true
device = "cuda" if torch.cuda.is_available else "cpu"
# fixed: device = "cuda" if torch.cuda.is_available() else "cpu"
print(torch.ones(3, device=device))
