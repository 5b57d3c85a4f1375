// Asks the user for the server's token where a request needs one, and repeats the request.

import { hasToken, keepToken } from "./api.js";

const dialog = document.getElementById("access");
const form = document.getElementById("access-form");
const field = document.getElementById("token");
let pending = null; // one dialog for all requests that are rejected at the same time

function openDialog() {
  document.getElementById("access-problem").hidden = !hasToken();
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(field.value !== ""), { once: true });
  }).finally(() => {
    pending = null;
  });
}

/** Resolves to true if the user enters a token; it is kept for this tab. */
export function askToken() {
  pending ??= openDialog();
  return pending;
}

/** The result of `request()`, which is repeated with each token entered while it is rejected. */
export async function withAccess(request) {
  for (;;) {
    try {
      return await request();
    } catch (problem) {
      if (problem.status !== 401 || !(await askToken())) throw problem;
    }
  }
}

form.addEventListener("submit", () => keepToken(field.value.trim()));
dialog.addEventListener("cancel", () => form.reset()); // Escape
dialog.querySelector(".close").addEventListener("click", () => {
  form.reset();
  dialog.close();
});
