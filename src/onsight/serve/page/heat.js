// The heat map over an image: which parts spoke for a class.

import { explain } from "./api.js";

/** Fills and shows `part`, the switch and dials of a result; asks the server when switched on. */
export function addHeat(result, part, classes) {
  const [toggle, choice, strength] = part.querySelectorAll("[type=checkbox], select, [type=range]");
  const dials = part.querySelector(".dials");
  const told = part.querySelector(".told");
  const laid = new Image();
  const drawn = new Map(); // addresses by class
  laid.className = `laid ${result.model.input.fit}`; // as the network was shown the image
  laid.hidden = true;
  choice.replaceChildren(...classes.map((name) => new Option(name)));
  part.hidden = false;

  async function show() {
    const name = choice.value;
    dials.hidden = !toggle.checked;
    told.hidden = true;
    laid.hidden = true;
    if (!toggle.checked) return;
    part.ariaBusy = "true";
    const asked = (onBusy) => explain(result.file, result.model.name, name, onBusy);
    if (!drawn.has(name)) {
      const blob = await result.asking(asked, told);
      if (blob) drawn.set(name, result.address(blob));
    }
    part.ariaBusy = "false";
    if (!drawn.has(name) || !toggle.checked || choice.value !== name) return;
    laid.src = drawn.get(name);
    laid.alt = `The heat map: where the image speaks for ${name}`;
    laid.hidden = false;
    told.textContent = `Bright and outlined: what spoke for ${name}.`;
    told.hidden = false;
    const stage = result.element.querySelector(".stage");
    (stage ?? result.element.querySelector(".lost")).append(laid);
  }

  toggle.addEventListener("change", show);
  choice.addEventListener("change", show);
  strength.addEventListener("input", () => {
    laid.style.opacity = strength.value / 100;
  });
}
