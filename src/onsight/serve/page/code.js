// Lines to copy that ask this very server from a shell or from Python.

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

/** Fills the dialog "Use it from code"; `model` is named where the server has several. */
export function showCode(model, several, token) {
  const address = new URL("predict", document.baseURI);
  if (several) address.searchParams.set("model", model.name);
  for (const [id, text] of Object.entries(samples(address.href, token))) part(id).textContent = text;
  part("code-token").textContent = token
    ? "The server's token is expected in the environment variable ONSIGHT_TOKEN."
    : "This server asks for no token. One that does wants the header “Authorization: Bearer …”.";
}

async function copy(button, say) {
  const source = part(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    say("Copied.");
    button.textContent = "Copied";
  } catch { // over plain http from another machine there is no clipboard
    getSelection().selectAllChildren(source);
    say("Selected. Copy it with Ctrl and C.");
    button.textContent = "Selected";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

/** Makes the buttons work; `say(sentence)` announces. */
export function copyButtons(say) {
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", () => copy(button, say));
  }
}
