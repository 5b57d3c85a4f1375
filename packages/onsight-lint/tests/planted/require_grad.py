"""A pretrained network whose layers are to be frozen."""

import torchvision
from torch import nn, optim

model = torchvision.models.resnet18(weights="DEFAULT")
for parameter in model.parameters():
    parameter.require_grad = False  # expect: requires-grad-misspelt
model.fc = nn.Linear(512, 10)
optimizer = optim.SGD(model.fc.parameters(), lr=0.01)

# fixed:     parameter.requires_grad = False
