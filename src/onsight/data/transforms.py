"""Geometry of whole batches: mirrors, shifts, warps and boxes, each a pure function.

B batch, H height, W width, C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_SMALL_IMAGE = 64 * 64  # pixels; above it, mirroring image by image costs less


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror some images left-right. images: any dtype (B, H, W, C); mirrored: bool (B,)."""
    if images.device.type != "cpu" or images.shape[1] * images.shape[2] <= _SMALL_IMAGE:
        return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(2), images)
    result = images.clone()
    for index in mirrored.nonzero().flatten().tolist():
        result[index] = images[index].flip(1)
    return result


def shift_and_flip(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror left-right, then move by whole pixels, in a single gather.

    The gap is filled by reflection at the edge. images: any dtype (B, H, W, C); down, right: int64
    (B,) pixels, less than the side; mirrored: bool (B,).
    """
    count, height, width, channels = images.shape
    y = _reflect(torch.arange(height, device=images.device) - down.unsqueeze(1), height)
    x = _reflect(torch.arange(width, device=images.device) - right.unsqueeze(1), width)
    x = torch.where(mirrored.unsqueeze(1), width - 1 - x, x)
    first = torch.arange(count, device=images.device) * (height * width)
    places = (first.unsqueeze(1) + y * width).unsqueeze(2) + x.unsqueeze(1)
    return images.reshape(-1, channels).index_select(0, places.view(-1)).view_as(images)


def warp(
    images: Tensor,
    height_share: Tensor,
    width_share: Tensor,
    centre_y: Tensor,
    centre_x: Tensor,
    radians: Tensor,
    mirrored: Tensor,
    size: tuple[int, int],
) -> Tensor:
    """Crop, rotate, mirror and resize in one bilinear resampling; edges are reflected.

    images: float (B, H, W, C). The result shows a window of height_share x width_share of the
    image around (centre_y, centre_x), which run from -1 to 1, turned by radians and mirrored
    where `mirrored` is true; each is (B,). size: (height, width) of the result. Returns float
    (B, *size, C).
    """
    height, width = images.shape[1:3]
    cos, sin = radians.cos(), radians.sin()
    side = (1.0 - 2.0 * mirrored) * width_share
    theta = torch.stack(
        [
            torch.stack([cos * side, -sin * height_share * height / width, centre_x], dim=1),
            torch.stack([sin * side * width / height, cos * height_share, centre_y], dim=1),
        ],
        dim=1,
    )
    planes = images.permute(0, 3, 1, 2)
    grid = F.affine_grid(theta, [*planes.shape[:2], *size], align_corners=False)
    warped = F.grid_sample(planes, grid, "bilinear", "reflection", align_corners=False)
    return warped.permute(0, 2, 3, 1)


def box(centre_y: Tensor, centre_x: Tensor, share: Tensor, height: int, width: int) -> Tensor:
    """Return boxes whose sides are a fraction (B,) of the image's, as a mask bool (B, 1, H, W).

    centre_y, centre_x: (B,), from 0 to 1.
    """
    y = (torch.arange(height, device=share.device) + 0.5) / height
    x = (torch.arange(width, device=share.device) + 0.5) / width
    rows = (y - centre_y.unsqueeze(1)).abs() < share.unsqueeze(1) / 2
    columns = (x - centre_x.unsqueeze(1)).abs() < share.unsqueeze(1) / 2
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)


def _reflect(places: Tensor, length: int) -> Tensor:
    """Fold positions outside 0..length-1 back inside, without repeating the edge."""
    return (length - 1) - ((length - 1) - places.abs()).abs()
