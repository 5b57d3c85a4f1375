// Images as network input: decoded by the browser, then fitted in the same way as in Onsight.
"use strict";

const pixels = (() => {
  const WEIGHT_LIMIT = 1 << 15; // torch has 16-bit weights, Pillow 22 fraction bits
  const MAX_BITS = 22;

  /** The bytes (H, W, C) of an encoded image, upright, on the background. */
  async function decode(blob, target) {
    const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
    const { width, height } = bitmap;
    if (width * height > target.pixel_limit) {
      throw new Error(`over ${target.pixel_limit / 1e6} megapixels`);
    }
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = `rgb(${target.background.join(" ")})`;
    context.fillRect(0, 0, width, height);
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    const { data } = context.getImageData(0, 0, width, height);
    const channels = target.channels;
    const bytes = new Uint8Array(width * height * channels);
    for (let from = 0, to = 0; from < data.length; from += 4, to += channels) {
      if (channels === 1) {
        bytes[to] = luma(data[from], data[from + 1], data[from + 2]);
      } else {
        bytes[to] = data[from];
        bytes[to + 1] = data[from + 1];
        bytes[to + 2] = data[from + 2];
      }
    }
    return { bytes, height, width, channels };
  }

  /** ITU-R 601 luma, rounded as Pillow rounds it. */
  function luma(red, green, blue) {
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
  }

  /** An image at the size of the network's input. */
  function fit(image, target) {
    const { height, width } = target;
    if (image.height === height && image.width === width) return image;
    const whole = { x: 0, y: 0, width: image.width, height: image.height };
    if (target.fit === "stretch") return resize(image, whole, height, width, bitsOfTorch);
    if (target.fit === "crop") {
      return resize(image, middleOf(image, width / height), height, width, bitsOfPillow);
    }
    return pad(resize(image, whole, ...contained(image, target), bitsOfPillow), target);
  }

  /** The largest box of this ratio in the middle of an image. */
  function middleOf(image, ratio) {
    const own = image.width / image.height;
    const width = own >= ratio ? ratio * image.height : image.width;
    const height = own >= ratio ? image.height : image.width / ratio;
    return { x: (image.width - width) / 2, y: (image.height - height) / 2, width, height };
  }

  /** [height, width] of a whole image inside the target. */
  function contained(image, target) {
    const { height, width } = target;
    if (image.width / image.height > width / height) {
      return [halfToEven((image.height / image.width) * width), width];
    }
    return [height, halfToEven((image.width / image.height) * height)];
  }

  function pad(image, target) {
    const { height, width, channels, background } = target;
    const ground = channels === 1 ? [greyOf(background)] : background;
    const bytes = new Uint8Array(height * width * channels).map((_, at) => ground[at % channels]);
    const top = halfToEven((height - image.height) / 2);
    const left = halfToEven((width - image.width) / 2);
    const row = image.width * channels;
    for (let y = 0; y < image.height; y++) {
      const from = image.bytes.subarray(y * row, (y + 1) * row);
      bytes.set(from, ((top + y) * width + left) * channels);
    }
    return { bytes, height, width, channels };
  }

  function greyOf([red, green, blue]) {
    return Math.floor((red * 299 + green * 587 + blue * 114) / 1000);
  }

  /** A box of an image at another size, bilinear with antialiasing: rows, then columns.
   *
   * Bit for bit torch's result where an image is stretched, within 1 grey level of Pillow's else.
   */
  function resize(image, box, height, width, bitsOf) {
    if (height === 0 || width === 0) return { ...image, bytes: new Uint8Array(0), height, width };
    const across = taps(box.x, box.width, image.width, width, bitsOf);
    const down = taps(box.y, box.height, image.height, height, bitsOf);
    return resizeColumns(resizeRows(image, across, width), down, height);
  }

  function resizeRows({ bytes, height, width, channels }, taps, size) {
    if (taps === null) return { bytes, height, width, channels };
    const resized = new Uint8Array(height * size * channels);
    for (let y = 0, to = 0; y < height; y++) {
      for (const { start, weights, bits } of taps) {
        for (let channel = 0; channel < channels; channel++, to++) {
          let from = (y * width + start) * channels + channel;
          let total = 2 ** (bits - 1);
          for (const weight of weights) {
            total += bytes[from] * weight;
            from += channels;
          }
          resized[to] = clamp(total >> bits);
        }
      }
    }
    return { bytes: resized, height, width: size, channels };
  }

  function resizeColumns({ bytes, height, width, channels }, taps, size) {
    if (taps === null) return { bytes, height, width, channels };
    const row = width * channels;
    const resized = new Uint8Array(size * row);
    taps.forEach(({ start, weights, bits }, y) => {
      for (let column = 0; column < row; column++) {
        let from = start * row + column;
        let total = 2 ** (bits - 1);
        for (const weight of weights) {
          total += bytes[from] * weight;
          from += row;
        }
        resized[y * row + column] = clamp(total >> bits);
      }
    });
    return { bytes: resized, height: size, width, channels };
  }

  function clamp(value) {
    return Math.max(0, Math.min(255, value));
  }

  /** For each new pixel: its first source pixel, and integer weights. */
  function taps(offset, extent, before, after, bitsOf) {
    if (offset === 0 && extent === before && before === after) return null;
    const scale = extent / after;
    const reach = Math.max(scale, 1);
    const shares = Array.from({ length: after }, (_, place) => {
      const centre = offset + scale * (place + 0.5);
      const start = Math.max(Math.trunc(centre - reach + 0.5), 0);
      const end = Math.min(Math.trunc(centre + reach + 0.5), before);
      const raw = [];
      for (let at = start; at < end; at++) {
        raw.push(Math.max(1 - Math.abs((at - centre + 0.5) * (1 / reach)), 0));
      }
      const sum = raw.reduce((a, b) => a + b, 0);
      return { start, shares: raw.map((share) => share / sum) };
    });
    const bits = bitsOf(Math.max(...shares.map((pixel) => Math.max(...pixel.shares))));
    return shares.map((pixel) => ({
      start: pixel.start,
      weights: pixel.shares.map((share) => Math.floor(share * 2 ** bits + 0.5)),
      bits,
    }));
  }

  function bitsOfTorch(largest) {
    let bits = 0;
    while (bits < MAX_BITS && Math.trunc(0.5 + largest * 2 ** (bits + 1)) < WEIGHT_LIMIT) bits++;
    return bits;
  }

  function bitsOfPillow() {
    return MAX_BITS;
  }

  /** Rounded as Python rounds. */
  function halfToEven(value) {
    const low = Math.floor(value);
    if (value - low !== 0.5) return Math.round(value);
    return low % 2 === 0 ? low : low + 1;
  }

  return { decode, fit };
})();
