// Asks the person for the server's token, and the server again with it.

import { hasToken, keepToken } from "./api.js";

const dialog = document.getElementById("access");
const form = document.getElementById("access-form");
const field = document.getElementById("token");
let asked = null; // one dialog for all who are refused at the same time

function openDialog() {
  document.getElementById("access-problem").hidden = !hasToken();
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(field.value !== ""), { once: true });
  }).finally(() => {
    asked = null;
  });
}

/** Whether a token was given; it is kept for this tab. */
export function askToken() {
  asked ??= openDialog();
  return asked;
}

/** The answer of `ask()`, which is called again with each token given where it was refused. */
export async function withAccess(ask) {
  for (;;) {
    try {
      return await ask();
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
