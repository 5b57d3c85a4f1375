// Small copies of images to show: a photo of 40 megapixels would fill the memory of a phone.

const SIDE = 640; // pixels, about twice the largest that is shown
const TINY = 96; // pixels; smaller images are shown as pixels, not blurred
let turn = Promise.resolve(); // one is decoded at a time

async function shrunk(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const tiny = Math.max(canvas.width, canvas.height) < TINY;
  const type = tiny ? "image/png" : "image/webp";
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, type, 0.85));
  return { blob, tiny, ratio: canvas.width / canvas.height };
}

/** A small copy of the image, `{blob, tiny, ratio}`, or null where the browser cannot decode it. */
export function preview(file) {
  const made = turn.then(() => shrunk(file)).catch(() => null);
  turn = made;
  return made;
}

const awaited = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      awaited.get(target)();
    }
  },
  { rootMargin: "600px" },
);

/** Calls `action()` once the element comes near to what is seen. */
export function whenNear(element, action) {
  awaited.set(element, action);
  observer.observe(element);
}
