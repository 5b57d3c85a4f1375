// Numbers and sentences in the style of Onsight's reports.

/** A proportion as 91.4%, with more digits where fewer would round to 0% or 100%. */
export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  if (share === 0 || share === 1) return `${100 * share}%`;
  if (share < 0.0001) return "<0.01%";
  if (share > 0.9999) return ">99.99%";
  return `${(100 * share).toFixed(share < 0.0005 || share > 0.9995 ? 2 : 1)}%`;
}

export const count = (number) => number.toLocaleString("en");

/** A message of the server as a sentence. */
export function sentence(clause) {
  const text = clause.charAt(0).toUpperCase() + clause.slice(1);
  return /[.?!]$/.test(text) ? text : `${text}.`;
}

export const images = (number) => `${count(number)} image${number === 1 ? "" : "s"}`;

/** Bytes as 3.4 MB. */
export function size(bytes) {
  const megabytes = bytes / 1e6;
  if (megabytes < 0.1) return `${count(Math.ceil(bytes / 1000))} kB`;
  return `${megabytes.toFixed(1)} MB`;
}
