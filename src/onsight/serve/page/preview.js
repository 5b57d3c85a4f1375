// Small copies of images to display: a 40-megapixel photo would fill a phone's memory.

const SIDE = 640; // pixels, about twice the largest size on the page
const TINY = 96; // pixels; smaller images are enlarged without smoothing
let previous = Promise.resolve(); // images are decoded one at a time

async function shrink(file, background) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = `rgb(${background.join(" ")})`;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const tiny = Math.max(canvas.width, canvas.height) < TINY;
  const type = tiny ? "image/png" : "image/webp";
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, type, 0.85));
  return { blob, tiny, ratio: canvas.width / canvas.height };
}

/**
 * A small copy of the image, `{blob, tiny, ratio}`, or null where the browser cannot decode it.
 * Transparent parts show `background`, [red, green, blue], as the model sees them.
 */
export function preview(file, background) {
  const current = previous.then(() => shrink(file, background)).catch(() => null);
  previous = current;
  return current;
}

const actions = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      actions.get(target)();
    }
  },
  { rootMargin: "600px" },
);

/** Calls `action()` once the element comes near the visible part of the page. */
export function whenNear(element, action) {
  actions.set(element, action);
  observer.observe(element);
}
