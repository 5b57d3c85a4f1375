// Requests to the server, with its token; a busy server is tried again later.

import { count, sentence } from "./words.js";

const TOKEN = "onsight-token";
const BUSY_SECONDS = 2; // where the response has no Retry-After

/** A response that is an error; `status` is 0 if there was no response at all. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);

const wait = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

async function send(path, { query = {}, signal, ...options } = {}) {
  const params = Object.entries(query).filter(([, value]) => value !== undefined);
  const url = params.length ? `${path}?${new URLSearchParams(params)}` : path;
  const headers = { ...options.headers };
  if (hasToken()) headers.Authorization = `Bearer ${sessionStorage.getItem(TOKEN)}`;
  try {
    return await fetch(url, { ...options, headers, signal });
  } catch (problem) {
    if (signal?.aborted) throw signal.reason;
    throw new ServerError(0, "The server cannot be reached. Is it still running?");
  }
}

async function errorOf(response) {
  if (response.status === 401) return new ServerError(401, "This server requires a token.");
  const body = await response.json().catch(() => ({}));
  const message = body.error ?? `The server answered with status ${response.status}.`;
  return new ServerError(response.status, sentence(message));
}

/** The response, if its status is 2xx or in `accepted`. `onBusy(sentence)` runs before each wait. */
async function request(path, options = {}, { onBusy, accepted = [] } = {}) {
  for (;;) {
    const response = await send(path, options);
    if (response.ok || accepted.includes(response.status)) return response;
    const problem = await errorOf(response);
    if (response.status !== 503 || !onBusy) throw problem;
    const seconds = Number(response.headers.get("Retry-After")) || BUSY_SECONDS;
    const reason = problem.message.split(/[:.]/)[0]; // without its advice to try again
    onBusy(`${reason}; trying again in ${count(Math.ceil(seconds))} s.`);
    await wait(seconds, options.signal);
  }
}

export const models = async () => (await request("models")).json();

export const card = async (model) => (await request("model", { query: { model } })).json();

/** One prediction for each file, in order. */
export async function predict(files, { model, top, signal, onBusy }) {
  const body = new FormData();
  for (const file of files) body.append("images", file, file.name || "image");
  const options = { method: "POST", query: { model, top }, body, signal };
  // 422 and 500 also list predictions: no image could be used, or the model failed on all.
  const response = await request("predict", options, { onBusy, accepted: [422, 500] });
  const { predictions } = await response.clone().json().catch(() => ({}));
  if (predictions?.length !== files.length) throw await errorOf(response);
  return predictions;
}

const singleImage = (file, query) => ({
  method: "POST",
  query,
  body: file,
  headers: { "Content-Type": "application/octet-stream" },
});

/** The image under its heat map, a Blob. */
export const explain = async (file, model, name, onBusy) =>
  (await request("explain", singleImage(file, { model, class: name }), { onBusy })).blob();

/** The most similar training images. */
export const similar = async (file, model, onBusy) =>
  (await (await request("similar", singleImage(file, { model }), { onBusy })).json()).similar;
