// The heat map over an image: the regions that support a class.

import { explain } from "./api.js";

/** Shows `part`, the heat map controls of a result; a map is requested when switched on. */
export function addHeat(result, part, classes) {
  const [toggle, choice, strength] = part.querySelectorAll("[type=checkbox], select, [type=range]");
  const dials = part.querySelector(".dials");
  const message = part.querySelector(".message");
  const layer = new Image();
  const urls = new Map(); // of the maps, by class
  layer.className = `laid ${result.model.input.fit}`; // placed as the network's input was
  layer.hidden = true;
  choice.replaceChildren(...classes.map((name) => new Option(name)));
  part.hidden = false;

  async function show() {
    const name = choice.value;
    dials.hidden = !toggle.checked;
    message.hidden = true;
    layer.hidden = true;
    if (!toggle.checked) return;
    part.ariaBusy = "true";
    if (!urls.has(name)) {
      const request = (onBusy) => explain(result.file, result.model.name, name, onBusy);
      const blob = await result.request(request, message);
      if (blob) urls.set(name, result.makeUrl(blob));
    }
    part.ariaBusy = "false";
    if (!urls.has(name) || !toggle.checked || choice.value !== name) return;
    layer.src = urls.get(name);
    layer.alt = `Heat map of the regions that support ${name}`;
    layer.hidden = false;
    message.textContent = `Bright, outlined regions support ${name}.`;
    message.hidden = false;
    const stage = result.element.querySelector(".stage");
    (stage ?? result.element.querySelector(".lost")).append(layer);
  }

  toggle.addEventListener("change", show);
  choice.addEventListener("change", show);
  strength.addEventListener("input", () => {
    layer.style.opacity = strength.value / 100;
  });
}
