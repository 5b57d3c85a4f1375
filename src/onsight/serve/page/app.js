// The page: images come in, wait in a queue, and are shown with the model's predictions.

import { showCard } from "./about.js";
import { askToken, withAccess } from "./access.js";
import * as api from "./api.js";
import { copyButtons, showCode } from "./code.js";
import { takeIn } from "./intake.js";
import { whenNear } from "./preview.js";
import { Queue } from "./queue.js";
import { Result, TOP } from "./result.js";
import { count, percent, images, size } from "./words.js";

const FORM_BYTES = 1024; // of a request, besides the image
const NAMES_SHOWN = 12;

const part = (id) => document.getElementById(id);

let names = []; // of all models
let model = null; // the card of the chosen one
let early = []; // files added before it was loaded
let results = []; // on the page
let fresh = []; // results since the last announcement
let limit = Infinity; // bytes of an image
let problem = null; // why no model is loaded

function announce(sentence) {
  part("announcement").textContent = sentence;
}

// A request outside the queue; `message` shows that the server is busy, or the error.
async function requestAside(request, message) {
  const show = (sentence) => {
    message.hidden = !sentence;
    message.textContent = sentence;
    announce(sentence);
  };
  try {
    const answer = await withAccess(() => request(show));
    show("");
    return answer;
  } catch (failed) {
    show(failed.message);
    return null;
  }
}

const queue = new Queue({
  async send(items, signal) {
    const onBusy = (sentence) => {
      part("state").textContent = sentence;
      announce(sentence);
    };
    const files = items.map((item) => item.file);
    return api.predict(files, { model: items[0].model.name, top: TOP, signal, onBusy });
  },
  onChange: showState,
  async onRejected() {
    if (await askToken()) queue.resume();
  },
});

/** "12 images: 8 × coat, 2 × shirt, bag. 1 failed." */
function summary(results) {
  const counts = new Map();
  for (const { predicted } of results) counts.set(predicted, (counts.get(predicted) ?? 0) + 1);
  const failed = counts.get(null) ?? 0;
  counts.delete(null);
  const classes = [...counts].sort((a, b) => b[1] - a[1]);
  const listed = classes.slice(0, TOP).map(([name, n]) => (n > 1 ? `${count(n)} × ${name}` : name));
  if (classes.length > TOP) listed.push(`${count(classes.length - TOP)} other classes`);
  const predictions = listed.length ? `: ${listed.join(", ")}.` : ".";
  return `${images(results.length)}${predictions}${failed ? ` ${count(failed)} failed.` : ""}`;
}

function announceResults() {
  const [first] = fresh;
  const isSingle = fresh.length === 1 && first.predicted !== null;
  announce(
    isSingle ? `${first.name}: ${first.predicted}, ${percent(first.probability)}.` : summary(fresh),
  );
  fresh = [];
}

function showState() {
  const held = problem ?? queue.held;
  part("work").hidden = !results.length && held === null;
  part("results").hidden = !results.length;
  document.body.classList.toggle("started", results.length > 0);
  part("progress").hidden = !queue.working;
  part("progress").max = queue.total || 1;
  part("progress").value = queue.done;
  part("again").hidden = held === null;
  part("stop").hidden = !queue.working;
  part("clear").hidden = queue.working || !results.length;
  if (held !== null) part("state").textContent = held;
  else if (queue.working) part("state").textContent = `${count(queue.done)} of ${images(queue.total)}`;
  else part("state").textContent = results.length ? summary(results) : "";
  if (held !== null) announce(held);
  else if (!queue.working && fresh.length) announceResults();
}

function add(files) {
  if (!model) {
    early.push(...files);
    return;
  }
  const options = { several: names.length > 1, request: requestAside };
  const added = files.map((file) => new Result(file, model, options));
  part("list").prepend(...added.map((result) => result.element));
  results = [...added, ...results];
  fresh.push(...added);
  const sendable = added.filter((result) => result.file.size <= limit);
  for (const result of added) {
    if (result.file.size <= limit) whenNear(result.element, () => result.showImage());
    else result.fail(`The file has ${size(result.file.size)}; this server accepts ${size(limit)} at most.`);
  }
  if (sendable.length) queue.add(sendable);
  else showState();
}

async function choose(name) {
  const card = await withAccess(() => api.card(name));
  if (part("model").value !== name) return; // another was chosen meanwhile
  model = card;
  problem = null;
  part("name").textContent = model.name;
  document.title = `${model.name} · Onsight`;
  const { classes } = model;
  const more = classes.length > NAMES_SHOWN ? `, … ${count(classes.length)} classes in all` : "";
  part("class-names").textContent = `Recognises ${classes.slice(0, NAMES_SHOWN).join(", ")}${more}.`;
  showCard(model);
  showCode(model, names.length > 1, api.hasToken());
  for (const id of ["open-about", "open-code"]) part(id).disabled = false;
  add(early.splice(0));
}

async function start() {
  problem = null;
  try {
    const served = await withAccess(api.models);
    names = served.models;
    limit = served.max_bytes - FORM_BYTES;
    part("model").replaceChildren(...names.map((name) => new Option(name)));
    part("model").value = served.default;
    await choose(served.default);
    part("models").hidden = names.length < 2;
  } catch (failed) {
    problem = failed.message;
  }
  showState();
}

takeIn({
  choose: part("choose"),
  photograph: part("photograph"),
  files: part("files"),
  camera: part("camera"),
  onImages: (files) => add(files),
});
copyButtons(announce);
part("model").addEventListener("change", async () => {
  try {
    await choose(part("model").value);
  } catch (failed) {
    problem = failed.message;
    part("model").value = model.name;
  }
  showState();
});
part("stop").addEventListener("click", () => queue.stop());
part("again").addEventListener("click", () => (problem ? start() : queue.resume()));
part("clear").addEventListener("click", () => {
  for (const result of results.splice(0)) result.dispose();
  showState();
  announce("Cleared.");
  part("choose").focus();
});
for (const [button, dialog] of [["open-about", "about"], ["open-code", "code"]]) {
  part(button).addEventListener("click", () => part(dialog).showModal());
  part(dialog).querySelector(".close").addEventListener("click", () => part(dialog).close());
}
start();
