// The page: images come in, wait in a queue, and are shown with the model's answers.

import { showCard } from "./about.js";
import { askToken, withAccess } from "./access.js";
import * as api from "./api.js";
import { copyButtons, showCode } from "./code.js";
import { takeIn } from "./intake.js";
import { whenNear } from "./preview.js";
import { Queue } from "./queue.js";
import { Result, TOP } from "./result.js";
import { count, percent, images, size } from "./words.js";

const FORM_BYTES = 1024; // around an image in a request

const part = (id) => document.getElementById(id);

let names = []; // of all models
let model = null; // the card of the chosen one
let early = []; // files given before it was known
let shown = [];
let fresh = []; // results since the last announcement
let limit = Infinity; // bytes of an image
let problem = null; // why the model is not known

function say(sentence) {
  part("said").textContent = sentence;
}

// What is asked beside the queue; `told` says that the server is busy, or what went wrong.
async function asking(ask, told) {
  const tell = (sentence) => {
    told.hidden = !sentence;
    told.textContent = sentence;
    say(sentence);
  };
  try {
    const answer = await withAccess(() => ask(tell));
    tell("");
    return answer;
  } catch (failed) {
    tell(failed.message);
    return null;
  }
}

const queue = new Queue({
  async send(items, signal) {
    const onBusy = (sentence) => {
      part("state").textContent = sentence;
      say(sentence);
    };
    const files = items.map((item) => item.file);
    return api.predict(files, { model: items[0].model.name, top: TOP, signal, onBusy });
  },
  onChange: showState,
  async onRefused() {
    if (await askToken()) queue.resume();
  },
});

/** "12 images: 8 × coat, 2 × shirt, bag. 1 has no answer." */
function summary(results) {
  const found = new Map();
  for (const { predicted } of results) found.set(predicted, (found.get(predicted) ?? 0) + 1);
  const without = found.get(null) ?? 0;
  found.delete(null);
  const classes = [...found].sort((a, b) => b[1] - a[1]);
  const listed = classes.slice(0, TOP).map(([name, n]) => (n > 1 ? `${count(n)} × ${name}` : name));
  if (classes.length > TOP) listed.push(`${count(classes.length - TOP)} other classes`);
  const answers = listed.length ? `: ${listed.join(", ")}.` : ".";
  const lost = without ? ` ${count(without)} ${without === 1 ? "has" : "have"} no answer.` : "";
  return `${images(results.length)}${answers}${lost}`;
}

function announce() {
  const [only] = fresh;
  const one = fresh.length === 1 && only.predicted !== null;
  say(one ? `${only.name}: ${only.predicted}, ${percent(only.probability)}.` : summary(fresh));
  fresh = [];
}

function showState() {
  const held = problem ?? queue.held;
  part("work").hidden = !shown.length && held === null;
  part("results").hidden = !shown.length;
  document.body.classList.toggle("started", shown.length > 0);
  part("progress").hidden = !queue.working;
  part("progress").max = queue.total || 1;
  part("progress").value = queue.done;
  part("again").hidden = held === null;
  part("stop").hidden = !queue.working;
  part("clear").hidden = queue.working || !shown.length;
  if (held !== null) part("state").textContent = held;
  else if (queue.working) part("state").textContent = `${count(queue.done)} of ${images(queue.total)}`;
  else part("state").textContent = shown.length ? summary(shown) : "";
  if (held !== null) say(held);
  else if (!queue.working && fresh.length) announce();
}

function add(files) {
  if (!model) {
    early.push(...files);
    return;
  }
  const results = files.map((file) => new Result(file, model, { several: names.length > 1, asking }));
  part("list").prepend(...results.map((result) => result.element));
  shown = [...results, ...shown];
  fresh.push(...results);
  const small = results.filter((result) => result.file.size <= limit);
  for (const result of results) {
    if (result.file.size <= limit) whenNear(result.element, () => result.showImage());
    else result.fail(`It has ${size(result.file.size)}; this server takes ${size(limit)} at most.`);
  }
  if (small.length) queue.add(small);
  else showState();
}

async function choose(name) {
  const card = await withAccess(() => api.card(name));
  if (part("model").value !== name) return; // another was chosen meanwhile
  model = card;
  problem = null;
  part("name").textContent = model.name;
  document.title = `${model.name} · Onsight`;
  const known = model.classes.slice(0, 12).join(", ");
  const more = model.classes.length > 12 ? `, … ${count(model.classes.length)} classes in all` : "";
  part("knows").textContent = `It knows: ${known}${more}.`;
  showCard(model);
  showCode(model, names.length > 1, api.hasToken());
  for (const id of ["open-about", "open-code"]) part(id).disabled = false;
  add(early.splice(0));
}

async function start() {
  problem = null;
  try {
    const told = await withAccess(api.models);
    names = told.models;
    limit = told.max_bytes - FORM_BYTES;
    part("model").replaceChildren(...names.map((name) => new Option(name)));
    part("model").value = told.default;
    await choose(told.default);
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
copyButtons(say);
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
  for (const result of shown.splice(0)) result.dispose();
  showState();
  say("Cleared.");
  part("choose").focus();
});
for (const [button, dialog] of [["open-about", "about"], ["open-code", "code"]]) {
  part(button).addEventListener("click", () => part(dialog).showModal());
  part(dialog).querySelector(".close").addEventListener("click", () => part(dialog).close());
}
start();
