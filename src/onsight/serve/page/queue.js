// Sends images in small batches, two at a time, so that no client blocks the others.

const BATCH_IMAGES = 8;
const BATCH_BYTES = 4e6; // a slow connection has seconds to send a batch; larger images go alone
const LANES = 2;

const readable = (file) => file.slice(0, 1).arrayBuffer().then(() => true, () => false);

/**
 * Items `{file, model, answer(prediction), fail(problem)}` waiting for `send(items, signal)`.
 *
 * `held` is the reason why nothing is sent until `resume()`, or null. `onChange()` is called after
 * every change, `onRejected()` when the server requires a token.
 */
export class Queue {
  total = 0;
  done = 0;
  held = null;
  #waiting = [];
  #running = 0;
  #stopper = new AbortController();

  constructor({ send, onChange, onRejected }) {
    Object.assign(this, { send, onChange, onRejected });
  }

  get working() {
    return this.done < this.total;
  }

  add(items) {
    if (!this.working) this.total = this.done = 0;
    this.total += items.length;
    this.#waiting.push(...items);
    this.#next();
  }

  resume() {
    this.held = null;
    this.#next();
  }

  stop() {
    this.#stopper.abort(new DOMException("Stopped.", "AbortError"));
    this.#stopper = new AbortController();
    this.held = null;
    for (const item of this.#waiting.splice(0)) this.#fail(item, "Not sent: you stopped.");
    this.onChange();
  }

  #next() {
    while (this.held === null && this.#running < LANES && this.#waiting.length) {
      this.#running += 1;
      this.#sendBatch(this.#batch()).finally(() => {
        this.#running -= 1;
        this.#next();
      });
    }
    this.onChange();
  }

  #batch() {
    const batch = [];
    let bytes = 0;
    for (const { file, model, alone } of this.#waiting) {
      bytes += file.size;
      const fits = bytes <= BATCH_BYTES && model === this.#waiting[0].model && !alone;
      if (batch.length && !fits) break;
      batch.push(this.#waiting[batch.length]);
      if (alone || batch.length === BATCH_IMAGES) break;
    }
    return this.#waiting.splice(0, batch.length);
  }

  async #sendBatch(batch) {
    const { signal } = this.#stopper;
    const items = [];
    for (const item of batch) {
      if (await readable(item.file)) items.push(item);
      else this.#fail(item, "The file cannot be read.");
    }
    if (!items.length) return;
    try {
      const predictions = await this.send(items, signal);
      predictions.forEach((prediction, row) => items[row].answer(prediction));
      this.done += items.length;
    } catch (problem) {
      this.#settle(items, problem);
    }
  }

  #settle(items, problem) {
    const { status, name, message } = problem;
    const fail = (reason) => items.forEach((item) => this.#fail(item, reason));
    if (name === "AbortError") return fail("Not sent: you stopped.");
    if (status === 413 && items.length > 1) {
      for (const item of items) item.alone = true;
    } else if (status === 401) {
      if (this.held === null) this.onRejected();
      this.held = message;
    } else if (status === 0 || status === 408 || status >= 500) {
      this.held = message;
    } else {
      return fail(message);
    }
    return this.#waiting.unshift(...items);
  }

  #fail(item, problem) {
    item.fail(problem);
    this.done += 1;
  }
}
