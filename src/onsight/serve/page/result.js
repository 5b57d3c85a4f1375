// One image with the model's answer, made from the template of the page.

import { predict } from "./api.js";
import { addHeat } from "./heat.js";
import { preview } from "./preview.js";
import { addSimilar } from "./similar.js";
import { count, percent, sentence } from "./words.js";

export const TOP = 5; // classes shown at first
const MOST = 1000; // that the server lists

const template = document.getElementById("result");

function row({ class: name, probability }) {
  const line = document.createElement("tr");
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
  line.append(head, cell);
  return line;
}

/** What is to be said beside a prediction, as [in short, the rest], or null. */
function doubt({ out_of_distribution: unlike, probability, predicted }) {
  if (unlike) return ["Unlike anything seen in training.", "The answer may mean nothing."];
  if (probability >= 0.5) return null;
  return ["Unsure.", `The model itself gives ${predicted} only ${percent(probability)}.`];
}

/** An image on its way: `element` to show, `answer` or `fail` once, `dispose` in the end. */
export class Result {
  predicted = null; // and its probability, once answered
  probability = null;
  #addresses = [];

  constructor(file, model, { several, asking }) {
    this.file = file;
    this.model = model;
    this.asking = asking;
    this.element = template.content.cloneNode(true).querySelector("li");
    this.name = file.name || "image";
    this.#part("figcaption").textContent = several ? `${this.name}, seen by ${model.name}` : this.name;
    this.#part("h3").textContent = "Waiting";
    this.element.classList.add("waiting");
  }

  #part(selector) {
    return this.element.querySelector(selector);
  }

  /** An address of a blob's, taken back by `dispose`. */
  address(blob) {
    const address = URL.createObjectURL(blob);
    this.#addresses.push(address);
    return address;
  }

  async showImage() {
    const made = await preview(this.file);
    if (!made || !this.#addresses) return;
    const image = new Image();
    image.alt = this.name;
    image.className = made.tiny ? "shown tiny" : "shown";
    image.src = this.address(made.blob);
    const stage = document.createElement("div");
    stage.className = "stage";
    stage.style.setProperty("--ratio", made.ratio);
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
    this.#note(doubt(prediction));
    this.#chart(prediction.probabilities);
    const { can = {} } = this.model;
    const classes = prediction.probabilities.slice(0, TOP).map((one) => one.class);
    if (can.explain) addHeat(this, this.#part(".heat"), classes);
    if (can.similar) addSimilar(this, this.#part(".similar"));
  }

  fail(problem) {
    this.element.classList.remove("waiting");
    this.element.classList.add("failed");
    this.#part("h3").textContent = "No answer";
    this.#note([problem]);
  }

  #note(words) {
    const note = this.#part(".note");
    note.hidden = words === null;
    if (words === null) return;
    const short = document.createElement("b");
    [short.textContent] = words;
    note.replaceChildren(short, words[1] ? ` ${words[1]}` : "");
  }

  #chart(first) {
    const chart = this.#part(".chart");
    const button = this.#part(".all");
    const { classes } = this.model;
    const total = Math.min(classes.length, MOST);
    const closed = total < classes.length ? `The ${count(MOST)} likeliest` : `All ${count(total)} classes`;
    const fill = (rows) => this.#part("tbody").replaceChildren(...rows.map(row));
    this.#part("caption").textContent = `The likeliest classes of ${this.name}`;
    chart.hidden = false;
    button.hidden = total <= first.length;
    button.textContent = closed;
    button.ariaExpanded = "false";
    fill(first);
    let all = null;
    button.addEventListener("click", async () => {
      const open = button.ariaExpanded === "false";
      if (open && !all) {
        const options = { model: this.model.name, top: total };
        const asked = (onBusy) => predict([this.file], { ...options, onBusy });
        const answer = await this.asking(asked, chart.querySelector(".told"));
        if (!answer) return;
        all = answer[0].probabilities;
      }
      fill(open ? all : first);
      button.ariaExpanded = String(open);
      button.textContent = open ? `The first ${first.length} only` : closed;
    });
  }

  dispose() {
    for (const address of this.#addresses) URL.revokeObjectURL(address);
    this.#addresses = null;
    this.element.remove();
  }
}
