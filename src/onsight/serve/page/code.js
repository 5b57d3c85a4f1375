// Code to copy that sends requests to this server, from a shell or from Python.

const part = (id) => document.getElementById(id);

function samples(predict, token) {
  const header = token ? ' \\\n  -H "Authorization: Bearer $ONSIGHT_TOKEN"' : "";
  const headers = ['"Content-Type": "application/octet-stream"'];
  if (token) headers.push('"Authorization": "Bearer " + os.environ["ONSIGHT_TOKEN"]');
  return {
    "curl-one": `curl "${predict}" \\\n  -H "Content-Type: application/octet-stream"${header} \\\n  --data-binary @image.jpg`,
    "curl-many": `curl "${predict}"${header} \\\n  -F images=@first.jpg -F images=@second.jpg`,
    python: `import json
${token ? "import os\n" : ""}from pathlib import Path
from urllib.request import Request, urlopen

image = Path("image.jpg").read_bytes()
headers = {${headers.join(", ")}}
request = Request("${predict}", image, headers)
with urlopen(request) as answer:
    prediction = json.load(answer)["predictions"][0]
print(prediction["predicted"], prediction["probability"])`,
  };
}

/** Fills the dialog "Use it from code"; `several` adds the model's name to the URL. */
export function showCode(model, several, token) {
  const address = new URL("predict", document.baseURI);
  if (several) address.searchParams.set("model", model.name);
  for (const [id, text] of Object.entries(samples(address.href, token))) part(id).textContent = text;
  part("code-token").textContent = token
    ? "Set the environment variable ONSIGHT_TOKEN to the server's token."
    : "This server requires no token. One that does expects the header “Authorization: Bearer …”.";
}

async function copy(button, announce) {
  const source = part(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    announce("Copied.");
    button.textContent = "Copied";
  } catch { // there is no clipboard over plain http from another machine
    getSelection().selectAllChildren(source);
    announce("Selected. Copy it with Ctrl+C.");
    button.textContent = "Selected";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

/** Connects the Copy buttons; `announce(sentence)` tells screen readers. */
export function copyButtons(announce) {
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", () => copy(button, announce));
  }
}
