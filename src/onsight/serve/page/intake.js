// Images that are dropped (folders too), pasted, chosen or photographed, as lists of files.

async function filesIn(entry) {
  if (entry.isFile) {
    const unreadable = new File([], entry.name); // the server reports that it is empty
    return [await new Promise((resolve) => entry.file(resolve, () => resolve(unreadable)))];
  }
  const reader = entry.createReader();
  const files = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return files; // a reader returns about a hundred at a time
    for (const child of some) files.push(...(await filesIn(child)));
  }
}

async function dropped(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry?.());
  if (!entries.some((entry) => entry?.isDirectory)) return [...transfer.files];
  const files = await Promise.all(entries.map((entry) => (entry ? filesIn(entry) : [])));
  return files.flat().filter((file) => !file.name.startsWith("."));
}

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

/** Calls `onImages(files)` for everything that reaches the page. */
export function takeIn({ choose, photograph, files, camera, onImages }) {
  for (const [button, input] of [[choose, files], [photograph, camera]]) {
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      onImages([...input.files]);
      input.value = ""; // so that the same image can be chosen again
    });
  }
  const setOver = (isOver) => document.body.classList.toggle("over", isOver);
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    setOver(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) setOver(false);
  });
  document.addEventListener("drop", async (event) => {
    setOver(false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    onImages(await dropped(event.dataTransfer));
  });
  document.addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length) onImages(pasted);
  });
}
