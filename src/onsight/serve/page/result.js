// One image with the model's prediction, made from the page's template.

import { predict } from "./api.js";
import { addHeat } from "./heat.js";
import { preview } from "./preview.js";
import { addSimilar } from "./similar.js";
import { count, percent, sentence } from "./words.js";

export const TOP = 5; // classes shown at first
const MAX_CLASSES = 1000; // that the server lists

const template = document.getElementById("result");

function classRow({ class: name, probability }) {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = name;
  const cell = document.createElement("td");
  const bar = document.createElement("span");
  bar.className = "share";
  bar.ariaHidden = "true";
  bar.style.setProperty("--share", probability);
  const figure = document.createElement("span");
  figure.textContent = percent(probability);
  cell.append(bar, figure);
  row.append(head, cell);
  return row;
}

/** A warning about a prediction, as [in short, the rest], or null. */
function warning({ out_of_distribution: isUnlike, probability, predicted }) {
  if (isUnlike) return ["Unlike anything seen in training.", "The prediction may be meaningless."];
  if (probability >= 0.5) return null;
  return ["Unsure.", `The model gives ${predicted} a probability of only ${percent(probability)}.`];
}

/** An image waiting for its prediction: `element` to show, `answer` or `fail` once, `dispose` at the end. */
export class Result {
  predicted = null; // and its probability, once answered
  probability = null;
  #urls = [];

  constructor(file, model, { several, request }) {
    this.file = file;
    this.model = model;
    this.request = request;
    this.element = template.content.cloneNode(true).querySelector("li");
    this.name = file.name || "image";
    this.#part("figcaption").textContent = several
      ? `${this.name}, classified by ${model.name}`
      : this.name;
    this.#part("h3").textContent = "Waiting";
    this.element.classList.add("waiting");
  }

  #part(selector) {
    return this.element.querySelector(selector);
  }

  /** A URL of a blob, which `dispose` revokes. */
  makeUrl(blob) {
    const url = URL.createObjectURL(blob);
    this.#urls.push(url);
    return url;
  }

  async showImage() {
    const small = await preview(this.file, this.model.input.background);
    if (!small || !this.#urls) return;
    const image = new Image();
    image.alt = this.name;
    image.className = small.tiny ? "shown tiny" : "shown";
    image.src = this.makeUrl(small.blob);
    const stage = document.createElement("div");
    stage.className = "stage";
    stage.style.setProperty("--ratio", small.ratio);
    stage.append(image);
    this.#part(".lost").replaceWith(stage);
  }

  answer(prediction) {
    if (prediction.problem !== null) {
      this.fail(sentence(prediction.problem));
      return;
    }
    this.element.classList.remove("waiting");
    ({ predicted: this.predicted, probability: this.probability } = prediction);
    this.#part("h3").textContent = this.predicted;
    this.#showNote(warning(prediction));
    this.#showChart(prediction.probabilities);
    const { capabilities = {} } = this.model;
    const classes = prediction.probabilities.slice(0, TOP).map((row) => row.class);
    if (capabilities.explain) addHeat(this, this.#part(".heat"), classes);
    if (capabilities.similar) addSimilar(this, this.#part(".similar"));
  }

  fail(problem) {
    this.element.classList.remove("waiting");
    this.element.classList.add("failed");
    this.#part("h3").textContent = "No result";
    this.#showNote([problem]);
  }

  #showNote(sentences) {
    const note = this.#part(".note");
    note.hidden = sentences === null;
    if (sentences === null) return;
    const short = document.createElement("b");
    [short.textContent] = sentences;
    note.replaceChildren(short, sentences[1] ? ` ${sentences[1]}` : "");
  }

  #showChart(first) {
    const chart = this.#part(".chart");
    const button = this.#part(".all");
    const { classes } = this.model;
    const total = Math.min(classes.length, MAX_CLASSES);
    const all = total < classes.length ? `The ${count(total)} most likely` : `All ${count(total)} classes`;
    const fill = (rows) => this.#part("tbody").replaceChildren(...rows.map(classRow));
    this.#part("caption").textContent = `Most likely classes of ${this.name}`;
    chart.hidden = false;
    button.hidden = total <= first.length;
    button.textContent = all;
    button.ariaExpanded = "false";
    fill(first);
    let rows = null; // of all classes
    button.addEventListener("click", async () => {
      const open = button.ariaExpanded === "false";
      if (open && !rows) {
        const options = { model: this.model.name, top: total };
        const request = (onBusy) => predict([this.file], { ...options, onBusy });
        const answer = await this.request(request, chart.querySelector(".message"));
        if (!answer) return;
        rows = answer[0].probabilities;
      }
      fill(open ? rows : first);
      button.ariaExpanded = String(open);
      button.textContent = open ? `Only the first ${first.length}` : all;
    });
  }

  dispose() {
    for (const url of this.#urls) URL.revokeObjectURL(url);
    this.#urls = null;
    this.element.remove();
  }
}
