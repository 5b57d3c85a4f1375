// The network, run by onnxruntime-web from files that were loaded with the page.
"use strict";

const classifier = (() => {
  const { facts, network } = window.onsightModel;

  function bytesOf(base64) {
    return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  }

  function urlOf(base64) {
    return URL.createObjectURL(new Blob([bytesOf(base64)], { type: "text/javascript" }));
  }

  /** Start the runtime; nothing is fetched, so that it works offline and from a folder on disk. */
  async function start() {
    ort.env.wasm.numThreads = 1; // more need headers that a folder on disk cannot send
    ort.env.wasm.wasmBinary = bytesOf(window.onnxruntimeFiles.wasm);
    ort.env.wasm.wasmPaths = { mjs: urlOf(window.onnxruntimeFiles.loader) };
    return ort.InferenceSession.create(bytesOf(network));
  }

  const session = start();

  /** [{name, probability}] of every class for an encoded image, the likeliest first. */
  async function classify(blob) {
    const target = facts.image;
    const image = pixels.fit(await pixels.decode(blob, target), target);
    const shape = [1, target.height, target.width, target.channels];
    const given = { images: new ort.Tensor("uint8", image.bytes, shape) };
    const found = (await (await session).run(given)).probabilities.data;
    return facts.classes
      .map((name, place) => ({ name, probability: found[place] }))
      .sort((one, other) => other.probability - one.probability);
  }

  return { facts, ready: session, classify };
})();
