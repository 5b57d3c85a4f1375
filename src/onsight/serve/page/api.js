// Asks the server: with its token, in the model's name, and again after a while where it is busy.

import { count, sentence } from "./words.js";

const TOKEN = "onsight-token";
const BUSY_SECONDS = 2; // where the answer does not say when to come back

/** An answer that is an error; `status` is 0 if there was no answer at all. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);

const waiting = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

async function ask(path, { query = {}, signal, ...options } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  const address = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  const headers = { ...options.headers };
  if (hasToken()) headers.Authorization = `Bearer ${sessionStorage.getItem(TOKEN)}`;
  try {
    return await fetch(address, { ...options, headers, signal });
  } catch (problem) {
    if (signal?.aborted) throw signal.reason;
    throw new ServerError(0, "The server cannot be reached. Is it still running?");
  }
}

async function failure(answer) {
  if (answer.status === 401) return new ServerError(401, "This server asks for its token.");
  const told = await answer.json().catch(() => ({}));
  const message = told.error ?? `The server answered ${answer.status}.`;
  return new ServerError(answer.status, sentence(message));
}

/** The answer, if it is 2xx or `accepted`. `onBusy(sentence)` is called before each wait. */
async function answered(path, options = {}, { onBusy, accepted = [] } = {}) {
  for (;;) {
    const answer = await ask(path, options);
    if (answer.ok || accepted.includes(answer.status)) return answer;
    const problem = await failure(answer);
    if (answer.status !== 503 || !onBusy) throw problem;
    const seconds = Number(answer.headers.get("Retry-After")) || BUSY_SECONDS;
    const reason = problem.message.split(/[:.]/)[0]; // it goes on: try again
    onBusy(`${reason}; trying again in ${count(Math.ceil(seconds))} s.`);
    await waiting(seconds, options.signal);
  }
}

export const models = async () => (await answered("models")).json();

export const card = async (model) => (await answered("model", { query: { model } })).json();

/** One prediction for each file, in order. */
export async function predict(files, { model, top, signal, onBusy }) {
  const body = new FormData();
  for (const file of files) body.append("images", file, file.name || "image");
  const options = { method: "POST", query: { model, top }, body, signal };
  // 422 and 500 have the same form where no image could be used, or the model failed on all.
  const answer = await answered("predict", options, { onBusy, accepted: [422, 500] });
  const { predictions } = await answer.clone().json().catch(() => ({}));
  if (predictions?.length !== files.length) throw await failure(answer);
  return predictions;
}

const oneImage = (file, query) => ({
  method: "POST",
  query,
  body: file,
  headers: { "Content-Type": "application/octet-stream" },
});

/** The image with the heat laid over it, a Blob. */
export const explain = async (file, model, name, onBusy) =>
  (await answered("explain", oneImage(file, { model, class: name }), { onBusy })).blob();

/** The training images that the network finds most alike. */
export const similar = async (file, model, onBusy) =>
  (await (await answered("similar", oneImage(file, { model }), { onBusy })).json()).similar;
