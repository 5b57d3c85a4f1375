// What the model is and how good it is: its card, from the facts the server gives.

import { count, percent } from "./words.js";

const part = (id) => document.getElementById(id);

function made(tag, ...content) {
  const element = document.createElement(tag);
  element.append(...content);
  return element;
}

function fact(label, value, note = "") {
  return made("div", made("dt", label), made("dd", made("b", value), made("small", note)));
}

/** The recall as a dot in its interval, on a scale from 0 to 1. */
function interval({ recall, low, high }) {
  const drawn = document.createElement("span");
  drawn.className = "interval";
  drawn.ariaHidden = "true";
  for (const [name, value] of Object.entries({ recall, low, high })) {
    drawn.style.setProperty(`--${name}`, value);
  }
  return drawn;
}

function classRow(row) {
  const head = made("th", row.class);
  head.scope = "row";
  const known = row.recall !== null && row.recall !== undefined;
  const cells = [
    made("td", percent(row.recall)),
    made("td", known ? interval(row) : ""),
    made("td", known ? `${percent(row.low)} to ${percent(row.high)}` : "–"),
    made("td", count(row.n)),
  ];
  cells[0].className = cells[3].className = "n";
  return made("tr", head, ...cells);
}

function headline({ accuracy, accuracy_low: low, accuracy_high: high, images }) {
  if (accuracy === null || accuracy === undefined) {
    return ["–", "No images were held out, so nobody knows how good it is."];
  }
  const right = count(Math.round(accuracy * images));
  return [
    percent(accuracy),
    `Of ${count(images)} images that it was not trained on, it classified ${right} correctly. ` +
      `On new images of the same kind, expect ${percent(low)} to ${percent(high)} (95% interval).`,
  ];
}

const FITS = { stretch: "images are stretched to it", crop: "the middle of an image", pad: "whole images" };

function looksAt({ height, width, channels, fit }) {
  return [`${width} × ${height} pixels`, [channels === 1 ? "in grey" : "in colour", FITS[fit]].join(", ")];
}

/** Fills the dialog "About this model". */
export function showCard(model) {
  const [figure, meaning] = headline(model);
  part("about-accuracy").textContent = figure;
  part("about-meaning").textContent = meaning;
  const facts = [
    ["Name", model.name],
    ["Network", model.model],
    ["Trained on", model.data],
    ["Date", model.date],
    ["Looks at", looksAt(model.input)],
    ["Classes", count(model.classes.length)],
  ];
  const known = facts.filter(([, value]) => value !== null && value !== undefined);
  part("about-facts").replaceChildren(...known.map(([name, value]) => fact(name, ...[value].flat())));
  const limits = model.limits?.length ? model.limits : ["None are recorded."];
  part("about-limits").replaceChildren(...limits.map((sentence) => made("li", sentence)));
  const unmeasured = (name) => ({ class: name, recall: null, n: 0 });
  const rows = model.per_class?.length ? model.per_class : model.classes.map(unmeasured);
  part("about-classes").replaceChildren(...rows.map(classRow));
}
