// The page of the API: its commands name the server as this browser reaches it, and can be copied.

import { copyButtons } from "./code.js";

const { address } = document.body.dataset; // as the server sees it, perhaps behind a proxy
for (const code of document.querySelectorAll("code[id]")) {
  code.textContent = code.textContent.replace(address, new URL(".", document.baseURI).href);
}
copyButtons((sentence) => {
  document.getElementById("announcement").textContent = sentence;
});
