"""Random transforms of a whole batch, with random numbers for each image.

Every function needs nothing but torch, because its source is copied into users' scripts.
Shapes: images are (B, C, H, W), uint8 from 0 to 255 or float from 0 to 1, as are the results.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def random_mask(images: Tensor, p: float) -> Tensor:
    """Draw which images a transform of this probability applies to: bool (B, 1, 1, 1)."""
    return torch.rand(len(images), 1, 1, 1, device=images.device) < p


def random_uniform(images: Tensor, low: float, high: float) -> Tensor:
    """Draw a uniform number for each image: (B,)."""
    return torch.empty(len(images), device=images.device).uniform_(low, high)


def cast_like(pixels: Tensor, images: Tensor) -> Tensor:
    """Return computed pixels in the dtype of the images they were computed from."""
    if images.dtype != torch.uint8:
        return pixels
    return pixels.round_().clamp_(0, 255).to(torch.uint8)


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 from 0 to 255 to float from 0 to 1, like ToTensor."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def random_flip(images: Tensor, p: float, dim: int) -> Tensor:
    """Mirror some images: dim -1 left to right, -2 upside down."""
    return torch.where(random_mask(images, p), images.flip(dim), images)


def random_crop(
    images: Tensor, size: tuple[int, int], padding: tuple[int, int, int, int], mode: str
) -> Tensor:
    """Crop each image after padding it on the left, right, top and bottom."""
    # torch does not implement reflection for uint8
    padded = F.pad(images.float(), padding, mode).to(images.dtype) if any(padding) else images
    windows = padded.unfold(2, size[0], 1).unfold(3, size[1], 1)
    top = torch.randint(windows.shape[2], (len(images),), device=images.device)
    left = torch.randint(windows.shape[3], (len(images),), device=images.device)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def warp(
    images: Tensor, rows: tuple[Tensor, Tensor], size: tuple[int, int], mode: str, edge: str
) -> Tensor:
    """Sample each image by an affine matrix of two rows, (B, 3) each, in coordinates -1 to 1."""
    grid = F.affine_grid(torch.stack(rows, 1), [*images.shape[:2], *size], align_corners=False)
    return cast_like(F.grid_sample(images.float(), grid, mode, edge, align_corners=False), images)


def random_resized_crop(
    images: Tensor,
    size: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Crop a window of random area and aspect ratio from each image, and resize it."""
    height, width = images.shape[2:]
    area = random_uniform(images, *scale)
    low, high = torch.tensor(ratio).log().tolist()
    aspect = random_uniform(images, low, high).exp() * height / width
    tall, wide = (area / aspect).sqrt().clamp(max=1), (area * aspect).sqrt().clamp(max=1)
    down, right = (
        (1 - tall) * random_uniform(images, -1, 1),
        (1 - wide) * random_uniform(images, -1, 1),
    )
    zero = torch.zeros_like(area)
    rows = torch.stack([wide, zero, right], 1), torch.stack([zero, tall, down], 1)
    return warp(images, rows, size, "bilinear", "border")


def random_affine(
    images: Tensor,
    degrees: tuple[float, float],
    translate: tuple[float, float],
    scale: tuple[float, float],
    mode: str,
) -> Tensor:
    """Rotate, shift and scale each image about its centre; the outside is black."""
    height, width = images.shape[2:]
    angle = torch.deg2rad(random_uniform(images, *degrees))
    size = random_uniform(images, *scale)
    cos, sin = angle.cos() / size, angle.sin() / size
    right = random_uniform(images, -2 * translate[0], 2 * translate[0])
    down = random_uniform(images, -2 * translate[1], 2 * translate[1])
    rows = (
        torch.stack([cos, -sin * height / width, right], 1),
        torch.stack([sin * width / height, cos, down], 1),
    )
    return warp(images, rows, (height, width), mode, "zeros")


def grey(pixels: Tensor) -> Tensor:
    """Return the luma of colour images: (B, 1, H, W)."""
    weights = torch.tensor([0.2989, 0.587, 0.114], device=pixels.device)
    return (pixels * weights.view(1, 3, 1, 1)).sum(1, keepdim=True)


def random_greyscale(images: Tensor, p: float) -> Tensor:
    """Remove the colour of some images."""
    plain = cast_like(grey(images.float()), images).expand_as(images)
    return torch.where(random_mask(images, p), plain, images)


def color_jitter(
    images: Tensor,
    brightness: tuple[float, float],
    contrast: tuple[float, float],
    saturation: tuple[float, float],
) -> Tensor:
    """Scale each image's brightness, contrast about its mean, and saturation."""
    top = 255.0 if images.dtype == torch.uint8 else 1.0
    pixels = images * random_uniform(images, *brightness).view(-1, 1, 1, 1)
    pixels.clamp_(0, top)
    means = grey(pixels).mean((1, 2, 3), keepdim=True)
    pixels = torch.lerp(means, pixels, random_uniform(images, *contrast).view(-1, 1, 1, 1)).clamp_(
        0, top
    )
    factor = random_uniform(images, *saturation).view(-1, 1, 1, 1)
    return cast_like(torch.lerp(grey(pixels), pixels, factor).clamp_(0, top), images)


def gaussian_blur(
    images: Tensor, kernel_size: tuple[int, int], sigma: tuple[float, float]
) -> Tensor:
    """Blur each image by a Gaussian of random width; kernel_size is (horizontal, vertical)."""
    width = random_uniform(images, *sigma).view(-1, 1)
    profiles = []
    for side in kernel_size:
        offsets = torch.arange(side, device=images.device) - side // 2
        profiles.append(torch.softmax(-0.5 * (offsets / width) ** 2, 1))
    kernels = (profiles[1].unsqueeze(2) * profiles[0].unsqueeze(1)).repeat_interleave(
        images.shape[1], 0
    )
    x, y = kernel_size[0] // 2, kernel_size[1] // 2
    padded = F.pad(images.float(), (x, x, y, y), "reflect")
    planes = padded.reshape(1, -1, *padded.shape[2:])  # so that each image has its own kernel
    blurred = F.conv2d(planes, kernels.unsqueeze(1), groups=planes.shape[1])
    return cast_like(blurred.view(images.shape), images)


def random_erasing(
    images: Tensor, p: float, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Set a box of random area and aspect ratio to 0 in some images."""
    height, width = images.shape[2:]
    area = random_uniform(images, *scale) * height * width
    low, high = torch.tensor(ratio).log().tolist()
    aspect = random_uniform(images, low, high).exp()
    tall, wide = (area * aspect).sqrt().clamp(max=height), (area / aspect).sqrt().clamp(max=width)
    top, left = (
        (height - tall) * random_uniform(images, 0, 1),
        (width - wide) * random_uniform(images, 0, 1),
    )
    rows = torch.arange(height, device=images.device) + 0.5 - top.unsqueeze(1)
    columns = torch.arange(width, device=images.device) + 0.5 - left.unsqueeze(1)
    inside_rows = (rows > 0) & (rows < tall.unsqueeze(1))
    inside_columns = (columns > 0) & (columns < wide.unsqueeze(1))
    box = (inside_rows.unsqueeze(2) & inside_columns.unsqueeze(1)).unsqueeze(1)
    return images.masked_fill(box & random_mask(images, p), 0)
