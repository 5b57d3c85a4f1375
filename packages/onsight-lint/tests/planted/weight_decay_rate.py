"""Weight decay has the name that another library gave it."""

import torch
from torch import nn

network = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
groups = [
    # expect: optimizer-setting-misspelt
    {"params": network[0].parameters(), "weight_decay_rate": 0.01},
    {"params": network[1].parameters(), "lr_scale": 0.1},
]
optimizer = torch.optim.AdamW(groups, lr=0.001)

# fixed:     {"params": network[0].parameters(), "weight_decay": 0.01},
