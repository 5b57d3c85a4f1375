// The network, run by onnxruntime-web from scripts that were loaded with the page.
"use strict";

const classifier = (() => {
  const { facts, network } = window.onsightModel;

  function bytesOf(base64) {
    return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  }

  function urlOf(base64) {
    return URL.createObjectURL(new Blob([bytesOf(base64)], { type: "text/javascript" }));
  }

  /** Starts the runtime without fetching anything, so that it works offline and from a disk. */
  async function start() {
    ort.env.wasm.numThreads = 1; // more threads need HTTP headers, which a folder on disk does not have
    ort.env.wasm.wasmBinary = bytesOf(window.onnxruntimeFiles.wasm);
    ort.env.wasm.wasmPaths = { mjs: urlOf(window.onnxruntimeFiles.loader) };
    return ort.InferenceSession.create(bytesOf(network));
  }

  const session = start();

  /**
   * `ranked`, [{name, probability}] of every class for an encoded image, the most likely first, and
   * `isUnlike`, whether the image is unlike anything seen in training.
   */
  async function classify(blob) {
    const target = facts.image;
    const image = pixels.fit(await pixels.decode(blob, target), target);
    const shape = [1, target.height, target.width, target.channels];
    const inputs = { images: new ort.Tensor("uint8", image.bytes, shape) };
    const { probabilities, scores } = await (await session).run(inputs);
    const ranked = facts.classes
      .map((name, index) => ({ name, probability: probabilities.data[index] }))
      .sort((a, b) => b.probability - a.probability);
    const detector = facts.out_of_distribution;
    return { ranked, isUnlike: Boolean(detector && scores.data[0] > detector.threshold) };
  }

  return { facts, ready: session, classify };
})();
