// The page: classifies images one after the other, and shows the most likely classes.
"use strict";

const CLASSES_SHOWN = 5;
const element = (id) => document.getElementById(id);
const results = element("results");
const status = element("status");

function node(name, text = "", attributes = {}) {
  const created = document.createElement(name);
  created.textContent = text;
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  return created;
}

function percent(share) {
  return `${(100 * share).toFixed(share > 0.9995 && share < 1 ? 2 : 1)}%`;
}

function row({ name, probability }) {
  const item = node("li");
  const bar = node("meter", "", { min: 0, max: 1, value: probability, "aria-hidden": "true" });
  item.append(node("span", name), bar, node("span", percent(probability), { class: "share" }));
  return item;
}

function card(file) {
  const item = node("li", "", { class: "card" });
  const image = node("img", "", { alt: "" });
  image.src = URL.createObjectURL(file);
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  image.addEventListener("error", () => image.remove());
  const text = node("div");
  text.append(node("h2", "…"), node("p", file.name || "pasted image", { class: "name" }));
  item.append(image, text);
  results.prepend(item);
  return text;
}

async function show(file) {
  const text = card(file);
  const title = text.querySelector("h2");
  try {
    const { ranked, isUnlike } = await classifier.classify(file);
    title.textContent = ranked[0].name;
    if (isUnlike) {
      const warning = "Unlike anything seen in training: the prediction may be meaningless.";
      text.append(node("p", warning, { class: "warning" }));
    }
    const list = node("ol");
    list.append(...ranked.slice(0, CLASSES_SHOWN).map(row));
    text.append(list);
    status.textContent = `${file.name}: ${ranked[0].name}, ${percent(ranked[0].probability)}`;
    return true;
  } catch (error) {
    title.textContent = "Not an image that this browser can read";
    text.append(node("p", String(error.message || error)));
    status.textContent = `${file.name} could not be read`;
    return false;
  }
}

async function showAll(files) {
  const queue = [...files];
  let done = 0;
  for (const file of queue) done += await show(file);
  if (queue.length > 1) status.textContent = `${done} of ${queue.length} images classified`;
}

function describe() {
  const { classes, results: measured } = classifier.facts;
  document.title = classifier.facts.model;
  const accuracy = measured?.images
    ? ` It classified ${percent(measured.accuracy)} of ${measured.images.toLocaleString()} held-out ` +
      `images correctly (95% CI ${percent(measured.accuracy_low)} to ` +
      `${percent(measured.accuracy_high)}).`
    : "";
  const names = classes.length > 12 ? `${classes.slice(0, 12).join(", ")}, …` : classes.join(", ");
  element("about").textContent = `${classes.length} classes: ${names}.${accuracy}`;
}

describe();
element("choose").addEventListener("change", (event) => showAll(event.target.files));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  showAll(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => showAll(event.clipboardData.files));
status.textContent = "loading the network";
classifier.ready.then(
  () => (status.textContent = "ready"),
  (error) => (status.textContent = `The network could not be loaded: ${error.message}`),
);
