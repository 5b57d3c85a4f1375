// The training images most similar to an image, requested when they are opened.

import { similar } from "./api.js";

function item({ label, similarity, image }) {
  const element = document.createElement("li");
  const thumbnail = new Image();
  thumbnail.src = image;
  thumbnail.alt = `A training image of ${label}`;
  const name = document.createElement("b");
  name.textContent = label;
  const figure = document.createElement("small");
  figure.textContent = similarity.toFixed(2);
  element.append(thumbnail, name, figure);
  return element;
}

/** Shows `part`, a details element of a result, and fills it the first time it is opened. */
export function addSimilar(result, part) {
  const list = part.querySelector("ul");
  part.hidden = false;
  part.addEventListener("toggle", async () => {
    if (!part.open || list.children.length) return;
    part.ariaBusy = "true";
    const request = (onBusy) => similar(result.file, result.model.name, onBusy);
    const neighbours = await result.request(request, part.querySelector(".message"));
    list.replaceChildren(...(neighbours ?? []).map(item));
    part.ariaBusy = "false";
  });
}
