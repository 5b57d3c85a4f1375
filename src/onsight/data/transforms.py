"""Changes of whole batches, each a pure function of pictures and drawn numbers.

B batch, H height, W width, C channels, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)
_SMALL_PICTURE = 64 * 64  # pixels; above it, a call for each picture to mirror costs less


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror some pictures left-right. images: any dtype (B, H, W, C); mirrored: bool (B,)."""
    if images.device.type != "cpu" or images.shape[1] * images.shape[2] <= _SMALL_PICTURE:
        return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(2), images)
    result = images.clone()
    for number in mirrored.nonzero().flatten().tolist():
        result[number] = images[number].flip(1)
    return result


def shift_and_flip(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror left-right, then move by whole pixels; what comes in is the edge's reflection.

    images: any dtype (B, H, W, C); down, right: int64 (B,) pixels, less than the side;
    mirrored: bool (B,). One gather.
    """
    count, height, width, channels = images.shape
    y = _reflect(torch.arange(height, device=images.device) - down.unsqueeze(1), height)
    x = _reflect(torch.arange(width, device=images.device) - right.unsqueeze(1), width)
    x = torch.where(mirrored.unsqueeze(1), width - 1 - x, x)
    first = torch.arange(count, device=images.device) * (height * width)
    places = (first.unsqueeze(1) + y * width).unsqueeze(2) + x.unsqueeze(1)
    return images.reshape(-1, channels).index_select(0, places.view(-1)).view_as(images)


def _reflect(places: Tensor, length: int) -> Tensor:
    """Fold places outside 0..length-1 back in, without repeating the edge."""
    return (length - 1) - ((length - 1) - places.abs()).abs()


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

    images: float (B, H, W, C). The result shows a window of height_share x width_share of
    the picture around (centre_y, centre_x), counted from -1 to 1, turned by radians
    (B,), mirrored where asked. size: (height, width) of the result. Returns float (B, *size, C).
    """
    height, width = images.shape[1:3]
    cos, sin = radians.cos(), radians.sin()
    side = torch.where(mirrored, -1.0, 1.0) * width_share
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


def jitter_colour(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor
) -> Tensor:
    """Scale brightness, then contrast about the mean, then saturation; factors (B,), 1 is none.

    images: float (B, H, W, C), 0 to 255.
    """
    images = images * brightness.view(-1, 1, 1, 1)
    grey = _luma(images)
    mean = grey.mean(dim=(1, 2, 3), keepdim=True)
    images = torch.lerp(mean.expand_as(images), images, contrast.view(-1, 1, 1, 1))
    if images.shape[3] == 3:
        grey = _luma(images).expand_as(images)
        images = torch.lerp(grey, images, saturation.view(-1, 1, 1, 1))
    return images.clamp(0, 255)


def _luma(images: Tensor) -> Tensor:
    if images.shape[3] == 1:
        return images
    weights = torch.tensor(_LUMA, device=images.device, dtype=images.dtype)
    return (images * weights).sum(dim=3, keepdim=True)


def box(centre_y: Tensor, centre_x: Tensor, share: Tensor, height: int, width: int) -> Tensor:
    """Boxes of share x the sides around a centre counted from 0 to 1. Returns bool (B, 1, H, W)."""
    y = (torch.arange(height, device=share.device) + 0.5) / height
    x = (torch.arange(width, device=share.device) + 0.5) / width
    rows = (y - centre_y.unsqueeze(1)).abs() < share.unsqueeze(1) / 2
    columns = (x - centre_x.unsqueeze(1)).abs() < share.unsqueeze(1) / 2
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)


def blend(inputs: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """mixup (Zhang et al., arXiv:1710.09412): share of each input, the rest its partner."""
    return torch.lerp(partners, inputs, share.view(-1, 1, 1, 1))


def paste(inputs: Tensor, partners: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """cutmix (Yun et al., arXiv:1905.04899): the partner within each box.

    Returns the pictures and the share (B,) of each that is still its own.
    """
    share = 1.0 - boxes.float().mean(dim=(1, 2, 3))
    return torch.where(boxes, partners, inputs), share


def soft_targets(labels: Tensor, partner_labels: Tensor, share: Tensor, classes: int) -> Tensor:
    """Targets (B, K): share for the own label, the rest for the partner's."""
    own = F.one_hot(labels, classes).float()
    other = F.one_hot(partner_labels, classes).float()
    return torch.lerp(other, own, share.unsqueeze(1))
