// The dialog "About this model": its card, from the facts that the server publishes.

import { count, percent } from "./words.js";

const part = (id) => document.getElementById(id);

const isKnown = (value) => value !== null && value !== undefined;

function make(tag, ...content) {
  const element = document.createElement(tag);
  element.append(...content);
  return element;
}

function fact(label, value, note = "") {
  return make("div", make("dt", label), make("dd", make("b", value), make("small", note)));
}

/** The recall as a dot in its interval, on a scale from 0 to 1. */
function intervalChart({ recall, low, high }) {
  const chart = document.createElement("span");
  chart.className = "interval";
  chart.ariaHidden = "true";
  for (const [name, value] of Object.entries({ recall, low, high })) {
    chart.style.setProperty(`--${name}`, value);
  }
  return chart;
}

function classRow(row) {
  const head = make("th", row.class);
  head.scope = "row";
  const isMeasured = isKnown(row.recall);
  const cells = [
    make("td", percent(row.recall)),
    make("td", isMeasured ? intervalChart(row) : ""),
    make("td", isMeasured ? `${percent(row.low)} to ${percent(row.high)}` : "–"),
    make("td", count(row.n)),
  ];
  cells[0].className = cells[3].className = "n";
  return make("tr", head, ...cells);
}

function headline({ accuracy, explanation }) {
  return isKnown(accuracy)
    ? [percent(accuracy), explanation.join(" ")]
    : ["–", "No images were held out, so its accuracy is unknown."];
}

const FITS = { stretch: "stretched to fit", crop: "cropped to the centre", pad: "padded to fit" };

function inputFacts({ height, width, channels, fit }) {
  const colour = channels === 1 ? "grey" : "colour";
  return [`${width} × ${height} pixels`, `${colour}, ${FITS[fit]}`];
}

/** Fills the dialog. */
export function showCard(model) {
  const [figure, meaning] = headline(model);
  part("about-accuracy").textContent = figure;
  part("about-meaning").textContent = meaning;
  const facts = [
    ["Name", model.name],
    ["Network", model.model],
    ["Trained on", model.data],
    ["Date", model.date],
    ["Input", inputFacts(model.input)],
    ["Classes", count(model.classes.length)],
  ];
  const known = facts.filter(([, value]) => isKnown(value));
  part("about-facts").replaceChildren(...known.map(([name, value]) => fact(name, ...[value].flat())));
  const limitations = model.limitations?.length ? model.limitations : ["None are recorded."];
  part("about-limitations").replaceChildren(...limitations.map((text) => make("li", text)));
  const unmeasured = (name) => ({ class: name, recall: null, n: 0 });
  const rows = model.per_class?.length ? model.per_class : model.classes.map(unmeasured);
  part("about-classes").replaceChildren(...rows.map(classRow));
}
