// The training images most like an image, asked for when they are opened.

import { similar } from "./api.js";

function entry({ label, similarity, image }) {
  const line = document.createElement("li");
  const image = new Image();
  image.src = image;
  image.alt = `A training image of ${label}`;
  const name = document.createElement("b");
  name.textContent = label;
  const figure = document.createElement("small");
  figure.textContent = similarity.toFixed(2);
  line.append(image, name, figure);
  return line;
}

/** Shows `part`, a details element of a result, and fills it the first time it is opened. */
export function addSimilar(result, part) {
  const list = part.querySelector("ul");
  part.hidden = false;
  part.addEventListener("toggle", async () => {
    if (!part.open || list.children.length) return;
    part.ariaBusy = "true";
    const asked = (onBusy) => similar(result.file, result.model.name, onBusy);
    const found = await result.asking(asked, part.querySelector(".told"));
    list.replaceChildren(...(found ?? []).map(entry));
    part.ariaBusy = "false";
  });
}
