// The page: images in, labels with bars out, one after the other.
"use strict";

const SHOWN = 5; // classes
const element = (id) => document.getElementById(id);
const results = element("results");
const status = element("status");

function node(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

function row({ name, probability }) {
  const made = node("li");
  const bar = node("meter", "", { min: 0, max: 1, value: probability, "aria-hidden": "true" });
  made.append(node("span", name), bar, node("span", percent(probability), { class: "share" }));
  return made;
}

function card(file) {
  const made = node("li", "", { class: "card" });
  const image = node("img", "", { alt: "" });
  image.src = URL.createObjectURL(file);
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  image.addEventListener("error", () => image.remove());
  const words = node("div");
  words.append(node("h2", "…"), node("p", file.name || "pasted image", { class: "name" }));
  made.append(image, words);
  results.prepend(made);
  return words;
}

async function show(file) {
  const words = card(file);
  const title = words.querySelector("h2");
  try {
    const found = await classifier.classify(file);
    title.textContent = found[0].name;
    const list = node("ol");
    list.append(...found.slice(0, SHOWN).map(row));
    words.append(list);
    status.textContent = `${file.name}: ${found[0].name}, ${percent(found[0].probability)}`;
    return true;
  } catch (error) {
    title.textContent = "Not an image that this browser can read";
    words.append(node("p", String(error.message || error)));
    status.textContent = `${file.name} could not be read`;
    return false;
  }
}

async function showAll(files) {
  const many = [...files];
  let done = 0;
  for (const file of many) done += await show(file);
  if (many.length > 1) status.textContent = `${done} of ${many.length} images classified`;
}

function describe() {
  const { classes, results: known } = classifier.facts;
  document.title = classifier.facts.model;
  const good = known?.images
    ? ` It was right for ${percent(known.accuracy)} of ${known.images.toLocaleString()} images ` +
      `that it had not seen (95% interval ${percent(known.accuracy_low)} to ` +
      `${percent(known.accuracy_high)}).`
    : "";
  const names = classes.length > 12 ? `${classes.slice(0, 12).join(", ")}, …` : classes.join(", ");
  element("about").textContent = `${classes.length} classes: ${names}.${good}`;
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
